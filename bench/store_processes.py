"""The processes of the store's benchmark: servers, and clients that measure what they are told.

All end with the input they read from, so none is left behind however the benchmark ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "build" / "bench" / "bin"
PROGRAM = PROGRAMS / "store_bench"
# torch is compared without its look-ups of names, see numeric_names.cc.
NUMERIC_NAMES = {"LD_PRELOAD": str(PROGRAMS / "numeric_names.so")}
SERVERS: dict[str, list[Path | str]] = {
    "ours": [PROGRAM, "serve-store"],
    "torch": [sys.executable, HERE / "torch_server.py"],
    "echo": [PROGRAM, "serve-echo"],
}


@contextmanager
def started(
    command: Sequence[Path | str], descriptors: Sequence[int] = ()
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=descriptors,
        env=os.environ | NUMERIC_NAMES,
    )
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def servers() -> Iterator[dict[str, int]]:
    """The ports of all servers, by system."""
    with ExitStack() as stack:
        running = {name: stack.enter_context(started(line)) for name, line in SERVERS.items()}
        yield {name: int(process.stdout.readline()) for name, process in running.items()}


class Client:
    """One client process, that measures what a line tells it to."""

    def __init__(self, lines: TextIO, answers: TextIO) -> None:
        self._lines = lines
        self._answers = answers

    def tell(self, line: str) -> None:
        print(line, file=self._lines, flush=True)

    def answer(self) -> list[int]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("a client ended early; it said why on stderr")
        return [int(number) for number in line.split()]


@contextmanager
def cpp_clients(count: int, ports: dict[str, int]) -> Iterator[list[Client]]:
    command = [PROGRAM, "client", str(ports["ours"]), str(ports["echo"])]
    with ExitStack() as stack:
        processes = [stack.enter_context(started(command)) for _ in range(count)]
        yield [Client(process.stdin, process.stdout) for process in processes]


@contextmanager
def python_clients(count: int, ports: dict[str, int]) -> Iterator[list[Client]]:
    pairs = [socket.socketpair() for _ in range(count)]
    descriptors = [theirs.fileno() for _, theirs in pairs]
    command = [sys.executable, HERE / "store_client.py"]
    command += [str(ports[name]) for name in ("ours", "torch", "echo")]
    command += [str(descriptor) for descriptor in descriptors]
    with ExitStack() as stack:
        stack.enter_context(started(command, descriptors))
        for _, theirs in pairs:
            theirs.close()
        files = [stack.enter_context(ours.makefile("rw")) for ours, _ in pairs]
        for ours, _ in pairs:
            ours.close()
        yield [Client(file, file) for file in files]


@contextmanager
def clients(count: int, ports: dict[str, int]) -> Iterator[dict[str, list[Client]]]:
    """So many client processes of each language."""
    with cpp_clients(count, ports) as cpp, python_clients(count, ports) as python:
        yield {"C++": cpp, "Python": python}
