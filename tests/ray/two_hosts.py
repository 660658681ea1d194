"""Two hosts on one machine: network namespaces joined by a veth pair. They vanish with the
processes that hold them. Needs root."""

import os
import subprocess
import time

ADDRESSES = ("10.78.0.1", "10.78.0.2")


class TwoHosts:
    def __init__(self) -> None:
        self._holders = [
            subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) for _ in ADDRESSES
        ]
        own = os.readlink("/proc/self/ns/net")
        for holder in self._holders:
            while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
                time.sleep(0.01)
        first, second = (holder.pid for holder in self._holders)
        _run(f"ip link add tb0 netns {first} type veth peer name tb0 netns {second}")
        for host, address in enumerate(ADDRESSES):
            for command in (
                f"address add {address}/24 dev tb0",
                "link set lo up",
                "link set tb0 up",
            ):
                _run(f"nsenter -t {self._holders[host].pid} -n ip {command}")
        for holder in self._holders:
            # UCX passes over a device whose link is not up yet.
            while "state UP" not in _run(f"nsenter -t {holder.pid} -n ip link show dev tb0"):
                time.sleep(0.01)

    def command(self, host: int, *command: str) -> list[str]:
        """The command, inside of a host: /sys shows the devices of the namespace that mounted it,
        and UCX looks for them there."""
        inner = 'mount -t sysfs sysfs /sys && exec "$@"'
        enter = ["nsenter", "-t", str(self._holders[host].pid), "-n"]
        return [*enter, "unshare", "--mount", "sh", "-c", inner, "sh", *command]

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()


def _run(command: str) -> str:
    return subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout
