"""The Python side of the store's benchmark: our client, torch's, and a socket for the floor.

Understands the same lines as ``store_bench client`` (see there) and answers with nanoseconds.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable
from datetime import timedelta

import tensorbus.kvstore
import torch.distributed

TIMEOUT = 60.0
VALUE = b"12345678"
VALUE_TEXT = VALUE.decode()  # torch's multi_set takes text only
ECHO = b"e" * 32


class OurClient:
    def __init__(self, port: int) -> None:
        self.store = tensorbus.kvstore.connect(f"tensorbus://127.0.0.1:{port}", timeout=TIMEOUT)
        self.get = self.store.get

    def set(self, key: str) -> None:
        self.store.set(key, VALUE)

    prepare = wake = send = set

    def add(self, key: str) -> None:
        self.store.add(key, 1)

    def wait(self, key: str) -> None:
        self.store.wait_for_key(key, TIMEOUT)

    def set_all(self, keys: list[str]) -> None:
        self.store.multi_set(dict.fromkeys(keys, VALUE))

    def wait_for_all(self, name: str, size: int) -> None:
        self.store.wait_for_keys(f"{name}/*/last", size, None, TIMEOUT)

    def barrier(self, name: str, size: int, member: int) -> None:
        self.store.barrier(name, size, TIMEOUT, member=member)


class TorchClient:
    def __init__(self, port: int) -> None:
        self.store = torch.distributed.TCPStore(
            "127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT)
        )
        self.get = self.store.get

    def set(self, key: str) -> None:
        # torch's set returns when the request is written. The cheapest request that is answered
        # makes it an acknowledged one.
        self.store.set(key, VALUE)
        self.store.check([key])

    def send(self, key: str) -> None:
        self.store.set(key, VALUE)

    prepare = wake = send

    def add(self, key: str) -> None:
        self.store.add(key, 1)

    def wait(self, key: str) -> None:
        self.store.wait([key])

    def set_all(self, keys: list[str]) -> None:
        self.store.multi_set(keys, [VALUE_TEXT] * len(keys))

    def wait_for_all(self, name: str, size: int) -> None:
        self.store.wait([f"{name}/{member}/last" for member in range(size)])

    def barrier(self, name: str, size: int, member: int) -> None:  # noqa: ARG002
        self.store.barrier(name, size)


class EchoClient:
    """See echo.h."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _send(self, operation: bytes, subject: str = "") -> None:
        self.socket.send(operation.ljust(24) + zlib.crc32(subject.encode()).to_bytes(8, "little"))

    def get(self, key: str) -> None:  # noqa: ARG002
        self.socket.send(ECHO)
        self.socket.recv(32)

    prepare = set = send = add = get

    def wait(self, key: str) -> None:
        self._send(b"w", key)
        self.socket.recv(32)

    def wake(self, key: str) -> None:
        self._send(b"r", key)

    def set_all(self, keys: list[str]) -> None:  # noqa: ARG002
        self.get("")

    def wait_for_all(self, name: str, size: int) -> None:  # noqa: ARG002
        self.get(name)

    def barrier(self, name: str, size: int, member: int) -> None:  # noqa: ARG002
        self.get(name)


Client = OurClient | TorchClient | EchoClient
CLIENTS: dict[str, Callable[[int], Client]] = {
    "ours": OurClient,
    "torch": TorchClient,
    "echo": EchoClient,
}


def sleep_until(moment: int) -> None:
    if (left := moment - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def run_crowd(size: int, task: Callable[[int], None]) -> int:
    """Nanoseconds from a common start until the last of many threads is done."""
    ready = threading.Barrier(size + 1)
    failures: list[Exception] = []

    def live(member: int) -> None:
        ready.wait()
        try:
            task(member)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=live, args=(member,)) for member in range(size)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.monotonic_ns()
    for thread in threads:
        thread.join()
    spent = time.monotonic_ns() - start
    if failures:
        raise failures[0]
    return spent


class Measurements:
    def __init__(self, ports: dict[str, int]) -> None:
        self._ports = ports
        self._clients: dict[str, Client] = {}
        self._barrier_clients: dict[str, list[Client]] = {}

    def run(self, line: str) -> list[int]:
        what, system, name, *rest = line.split()
        numbers = [int(number) for number in rest]
        if what in ("get", "set", "add"):
            return self._calls(what, self._client(system), name, *numbers)
        if what == "wait":
            return self._wait(self._client(system), name, *numbers)
        if what == "wake":
            return self._wake(self._client(system), name, *numbers)
        if what in ("storm", "acknowledged", "batches"):
            return self._storm(what, system, name, *numbers)
        if what == "barrier":
            return self._barrier(system, name, *numbers)
        raise ValueError(f"unknown measurement: {what}")

    def _connect(self, system: str) -> Client:
        return CLIENTS[system](self._ports[system])

    def _client(self, system: str) -> Client:
        if system not in self._clients:
            self._clients[system] = self._connect(system)
        return self._clients[system]

    def _calls(self, what: str, client: Client, key: str, count: int, start: int) -> list[int]:
        call = getattr(client, what)
        if what == "get":
            client.prepare(key)
        times = []
        clock = time.monotonic_ns
        sleep_until(start)
        for _ in range(count):
            before = clock()
            call(key)
            times.append(clock() - before)
        return times

    def _wait(self, client: Client, name: str, count: int) -> list[int]:
        times = []
        for key in [f"{name}/{i}" for i in range(count)]:
            client.wait(key)
            times.append(time.monotonic_ns())
        return times

    def _wake(self, client: Client, name: str, count: int, start: int, pause: int) -> list[int]:
        times = []
        for i, key in enumerate([f"{name}/{i}" for i in range(count)]):
            sleep_until(start + i * pause)
            times.append(time.monotonic_ns())
            client.wake(key)
        return times

    def _storm(self, what: str, system: str, name: str, size: int, count: int) -> list[int]:
        keys = [
            [*(f"{name}/{member}/{key}" for key in range(1, count)), f"{name}/{member}/last"]
            for member in range(size)
        ]
        connected: list[Client] = []

        def task(member: int) -> None:
            client = self._connect(system)
            connected.append(client)
            if what == "batches":
                client.set_all(keys[member])
            else:
                call = client.send if what == "storm" else client.set
                for key in keys[member]:
                    call(key)
            client.wait_for_all(name, size)

        return [run_crowd(size, task)]

    def _barrier(self, system: str, name: str, size: int) -> list[int]:
        members = self._barrier_clients.setdefault(system, [])
        while len(members) < size:
            members.append(self._connect(system))
        return [run_crowd(size, lambda member: members[member].barrier(name, size, member))]


def serve(channel: socket.socket, ports: dict[str, int]) -> None:
    """Answers lines until the other end is closed."""
    measurements = Measurements(ports)
    with channel.makefile("rw") as lines:
        for line in lines:
            print(*measurements.run(line), file=lines, flush=True)


def main(store: str, torch_store: str, echo: str, *descriptors: str) -> None:
    """Forks a client for each inherited socket: torch, slow to import, is imported once."""
    ports = {"ours": int(store), "torch": int(torch_store), "echo": int(echo)}
    channels = [socket.socket(fileno=int(descriptor)) for descriptor in descriptors]
    for channel in channels:
        if os.fork() == 0:
            for other in channels:
                if other is not channel:
                    other.close()
            serve(channel, ports)
            os._exit(0)
    for channel in channels:
        channel.close()
    for _ in channels:
        os.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
