"""Agents that do not reach their store for longer than their leases live, while they publish."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from buses import Bus, together
from processes import Process, Start, StartServer, start_etcd
from tensorbus import TensorBusClient
from tensorbus.kvstore import connect

# An agent's lease lives for 5 s.
CUT = 8.0


class Line:
    """A way to a server that can be held: connections stay and nothing passes."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open = threading.Event()
        self._open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def close(self) -> None:
        self.release()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=[client], daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            other = {client: server, server: client}
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    self._open.wait()
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    other[ready].sendall(data)


class Way(NamedTuple):
    """Where the store is, and how it is cut off and comes back."""

    url: str
    cut: Callable[[], None]
    mend: Callable[[], None]
    past_it: str | None = None  # the store, for who is not cut off


def stopped(url: str, process: Process) -> Way:
    return Way(url, lambda: process.signal(signal.SIGSTOP), lambda: process.signal(signal.SIGCONT))


@pytest.fixture(params=["a store that is stopped", "etcd that is stopped", "a line that is held"])
def way(request: pytest.FixtureRequest, start_server: StartServer, tmp_path: Path) -> Iterator[Way]:
    if request.param.startswith("etcd"):
        process, port = start_etcd(tmp_path / "etcd")
        yield stopped(f"etcd://127.0.0.1:{port}", process)
        process.kill()
        return
    server = start_server()
    if request.param.startswith("a store"):
        yield stopped(server.url, server.process)
        return
    line = Line(server.port)
    yield Way(f"tensorbus://127.0.0.1:{line.port}", line.hold, line.release, server.url)
    line.close()


def pair(client: TensorBusClient, name: str, local: str, remote: str) -> None:
    client.init_pair(name, local, remote, 1, timeout=40)


@pytest.mark.timeout(120)
def test_agents_cut_off_while_they_publish_go_on(
    way: Way, unique: str, start_program: Start, tmp_path: Path
) -> None:
    bus = Bus("daemon", way.url, f"bus-{unique}", start_program, tmp_path)
    with contextlib.closing(bus), ThreadPoolExecutor(2) as threads:
        sender, receiver = bus.client(0), bus.client(1)
        together(lambda: pair(sender, "p", "a", "b"), lambda: pair(receiver, "p", "b", "a"))
        sent, got = torch.arange(100), torch.zeros(100, dtype=torch.int64)
        way.cut()
        pending = [
            threads.submit(client.register_tensors, "x", [(tensor, "p")], timeout=60)
            for client, tensor in ((sender, sent), (receiver, got))
        ]
        time.sleep(CUT)
        assert not any(each.done() for each in pending), "it was not cut off"
        if way.past_it is not None:
            with connect(way.past_it, namespace=bus.namespace, component="bus") as store:
                assert store.list_keys("agent/") == [], "their leases should have lapsed"
        way.mend()
        source, target = (each.result(40) for each in pending)
        for step in range(2):
            sent += step
            together(
                lambda: source.transfer("send", blocking=True, timeout=30),
                lambda: target.transfer("recv", blocking=True, timeout=30),
            )
            assert torch.equal(sent, got)
        # Neither is mute: who comes later finds both.
        late = bus.client(2)
        for number, client in enumerate((sender, receiver)):
            together(
                lambda c=client, n=number: pair(c, f"later {n}", "a", "b"),
                lambda n=number: pair(late, f"later {n}", "b", "a"),
            )
        assert all(agent.is_alive() for agent in bus.agents.values())
