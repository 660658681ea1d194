"""Two hosts on one machine: network namespaces without names, which vanish with their processes."""

from __future__ import annotations

import re
import subprocess
import sys

from processes import Process, Start, eventually

ADDRESSES = ("10.78.0.1", "10.78.0.2")
# UCX looks for its devices in /sys.
# Says whether a connection stands within some seconds.
CALL = """
import socket, sys
source, target, port, patience = sys.argv[1:]
try:
    socket.create_connection((target, int(port)), float(patience), (source, 0))
    print("connected")
except TimeoutError:
    print("timed out")
"""
HOLD = "mount -t sysfs sysfs /sys && echo ready && exec sleep infinity"


def _start(*command: str) -> Process:
    return Process([*command])


class TwoHosts:
    """Joined by a veth pair. Needs root; over when `close` is called, or `start` ends what it
    started."""

    def __init__(self, start: Start = _start) -> None:
        self._holders = [start("unshare", "--net", "--mount", "sh", "-c", HOLD) for _ in ADDRESSES]
        self.pids = [holder.pid for holder in self._holders]
        try:
            for holder in self._holders:
                assert holder.line() == "ready"
            self._ip(0, f"link add tb0 type veth peer name tb0 netns {self.pids[1]}")
            for host, address in enumerate(ADDRESSES):
                self._ip(host, f"address add {address}/24 dev tb0")
                self._ip(host, "link set lo up")
                self._ip(host, "link set tb0 up")
            for host, _ in enumerate(ADDRESSES):
                # UCX passes over a device whose link is not up yet.
                eventually(lambda h=host: "state UP" in self._ip(h, "link show dev tb0"), "a link")
        except BaseException:
            self.close()
            raise

    def on(self, host: int) -> list[str]:
        """What to put before a command that runs there."""
        return ["nsenter", "--target", str(self.pids[host]), "--net", "--mount"]

    def run(self, host: int, *command: str) -> str:
        whole = [*self.on(host), *command]
        return subprocess.run(whole, check=True, capture_output=True, text=True).stdout.strip()

    def add_address(self, host: int, address: str) -> None:
        self.run(host, "ip", "address", "add", f"{address}/24", "dev", "tb0")

    def call(self, source: str, target: int, port: int, patience: float) -> str:
        """From an address of the other host; "connected" or "timed out"."""
        arguments = [source, ADDRESSES[target], str(port), str(patience)]
        return self.run(1 - target, sys.executable, "-c", CALL, *arguments)

    def listening(self, host: int, pid: int | None = None) -> set[int]:
        """Ports of a process there, or of all."""
        rows = self.run(host, "ss", "--no-header", "-ltnp").splitlines()
        return {
            int(row.split()[3].rpartition(":")[2])
            for row in rows
            if pid is None or re.search(rf"\bpid={pid}\b", row)
        }

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()

    def _ip(self, host: int, command: str) -> str:
        enter = [*self.on(host), "ip", *command.split()]
        return subprocess.run(enter, check=True, capture_output=True, text=True).stdout
