"""Two hosts on one machine: network namespaces without names, which vanish with their processes."""

from __future__ import annotations

import subprocess

from processes import Start, eventually

ADDRESSES = ["10.93.7.1", "10.93.7.2"]
# UCX looks for its devices in /sys.
HOLD = "mount -t sysfs sysfs /sys && echo ready && exec sleep infinity"


class TwoHosts:
    """Joined by a veth pair. Needs root; everything ends with the processes of `start`."""

    def __init__(self, start: Start) -> None:
        holders = [start("unshare", "--net", "--mount", "sh", "-c", HOLD) for _ in ADDRESSES]
        for holder in holders:
            assert holder.line() == "ready"
        self._pids = [str(holder.pid) for holder in holders]
        self._ip(0, "link", "add", "left", "type", "veth", "peer", "right", "netns", self._pids[1])
        for host, (device, address) in enumerate(zip(("left", "right"), ADDRESSES, strict=True)):
            self._ip(host, "address", "add", f"{address}/24", "dev", device)
            self._ip(host, "link", "set", device, "up")
            self._ip(host, "link", "set", "lo", "up")
        for host, device in enumerate(("left", "right")):
            # UCX passes over a device whose link is not up yet.
            eventually(
                lambda h=host, d=device: "state UP" in self._ip(h, "link", "show", d), device
            )

    def on(self, host: int) -> list[str]:
        """What to put before a command that runs there."""
        return ["nsenter", "--target", self._pids[host], "--net", "--mount"]

    def _ip(self, host: int, *arguments: str) -> str:
        command = [*self.on(host), "ip", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
