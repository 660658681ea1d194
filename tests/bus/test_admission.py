"""Who may connect to the port on which an agent listens for other hosts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from processes import PROGRAM, Process, Start, eventually
from two_hosts import ADDRESSES, TwoHosts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")

PORTS = range(7310, 7320)
STRANGER = "10.78.0.3"


class Hosts:
    def __init__(self, start: Start, folder: Path) -> None:
        self._start, self._folder = start, folder
        self._hosts = TwoHosts(start)
        store = start(*self._hosts.on(0), PROGRAM, "store", "--host", ADDRESSES[0], "--port", "0")
        self.url = store.line().removeprefix("ready ")

    def agent(self, host: int, rank: int, *options: str) -> Process:
        files = self._folder / f"{host}-{rank}"
        return self._start(
            *self._hosts.on(host), PROGRAM, "agent", f"--store={self.url}", f"--rank={rank}",
            "--world-size=3", f"--bind={ADDRESSES[host]}", f"--command-queue={files}.q",
            f"--state={files}.s", *options,
        )  # fmt: skip

    def call(self, source: str, port: int, patience: float) -> str:
        """From the second host to the first."""
        return self._hosts.call(source, 0, port, patience)

    def take_address(self, address: str) -> None:
        """At the second host."""
        self._hosts.add_address(1, address)

    def listening(self) -> set[int]:
        """Ports of the first host's agents."""
        found = self._hosts.listening(0)
        return {port for port in found if not self.url.endswith(f":{port}")}


@pytest.fixture
def hosts(start_program: Start, tmp_path: Path) -> Hosts:
    return Hosts(start_program, tmp_path)


def test_only_hosts_of_ranks_in_the_directory_can_connect(hosts: Hosts) -> None:
    hosts.agent(0, 0, f"--ports={PORTS[0]}-{PORTS[-1]}").line()
    (port,) = hosts.listening()
    assert port in PORTS
    assert hosts.call(ADDRESSES[1], port, 0.5) == "timed out"
    joined = hosts.agent(1, 1)
    joined.line()
    # Who comes before the news gets through with its second packet.
    assert hosts.call(ADDRESSES[1], port, 20) == "connected"
    hosts.take_address(STRANGER)
    assert hosts.call(STRANGER, port, 0.5) == "timed out"
    assert hosts.call(ADDRESSES[1], port, 20) == "connected"
    joined.signal(signal.SIGTERM)
    eventually(lambda: hosts.call(ADDRESSES[1], port, 0.5) == "timed out", "a rank that has left")


def test_a_second_agent_of_a_rank_is_refused_on_another_host(hosts: Hosts) -> None:
    hosts.agent(0, 0).line()
    second = hosts.agent(1, 0)
    assert second.wait(60) != 0
    assert "has an agent of rank 0 already" in second.errors
    assert hosts.agent(1, 1).line()


def test_ports_that_are_all_taken_are_named(hosts: Hosts) -> None:
    one = f"--ports={PORTS[0]}"
    hosts.agent(0, 0, one).line()
    second = hosts.agent(0, 1, one)
    assert second.wait(60) != 0
    assert f"at one of the ports {PORTS[0]}-{PORTS[0]}" in second.errors
