"""Two hosts on one machine: network namespaces without names, which vanish with their processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from processes import Start, eventually

ADDRESSES = ["10.93.7.1", "10.93.7.2"]


class TwoHosts:
    """Joined by a veth pair. Needs root; everything ends with the processes of `start`."""

    def __init__(self, start: Start) -> None:
        own = os.readlink("/proc/self/ns/net")
        self._spaces: list[str] = []
        for _ in ADDRESSES:
            holder = start("unshare", "--net", "sleep", "infinity")
            space = f"/proc/{holder.pid}/ns/net"
            eventually(lambda space=space: os.readlink(space) != own, "a network namespace")
            self._spaces.append(space)
        first, second = self._spaces
        peer = Path(second).parts[2]
        self._ip(first, "link", "add", "left", "type", "veth", "peer", "right", "netns", peer)
        for space, device, address in zip(self._spaces, ("left", "right"), ADDRESSES, strict=True):
            self._ip(space, "address", "add", f"{address}/24", "dev", device)
            self._ip(space, "link", "set", device, "up")
            self._ip(space, "link", "set", "lo", "up")

    def on(self, host: int) -> list[str]:
        """What to put before a command that runs there."""
        return ["nsenter", f"--net={self._spaces[host]}"]

    @staticmethod
    def _ip(space: str, *arguments: str) -> None:
        subprocess.run(["nsenter", f"--net={space}", "ip", *arguments], check=True)
