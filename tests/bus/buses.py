"""Agents and clients of one namespace, for tests."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from processes import PROGRAM, Process, Start, eventually, is_stopped
from tensorbus import TensorBusClient


def together(*calls: Callable[[], Any], timeout: float = 50.0) -> list[Any]:
    """Runs calls at the same time; their results, or the first exception."""
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[i], daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "a call did not end"
    if errors:
        raise errors[0]
    return results


def caught(call: Callable[[], Any]) -> Exception | None:
    """What a call raises."""
    try:
        call()
    except Exception as error:
        return error
    return None


@cache
def halting_program() -> Path:
    """The program of users but for agents that halt; users have none that does."""
    build = Path(__file__).resolve().parents[2] / "build/release"
    subprocess.run(["cmake", "--build", str(build), "--target", "halting_program"], check=True)
    return build / "bin/halting_program"


class Halt:
    """Lets an agent of halting_program() stop itself at a named step."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def last_argument(self) -> str:
        return f"--halt-file={self._file}"

    def arm(self, step: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(step + "\n")
        new.rename(self._file)

    def wait(self, agent: Process) -> None:
        eventually(lambda: is_stopped(agent.pid), "the agent to stop itself", 30)
        assert not self._file.exists()


class Bus:
    """Agents and clients of one namespace, closed with the test."""

    halts = False  # whether its agents can

    def __init__(self, kind: str, url: str, namespace: str, start: Start, folder: Path) -> None:
        self.kind = kind
        self.url = url
        self.namespace = namespace
        self.folder = folder
        self._start = start
        self.agents: dict[int, Process] = {}
        self._clients: list[TensorBusClient] = []

    def queue_path(self, rank: int) -> str:
        return str(self.folder / f"{rank}.command.lmdb")

    def state_path(self, rank: int) -> str:
        return str(self.folder / f"{rank}.state.lmdb")

    def halt(self, rank: int) -> Halt:
        return Halt(self.folder / f"{rank}.halt")

    def start_agent(self, rank: int, *options: str) -> Process:
        agent = self._start(
            str(halting_program() if self.halts else PROGRAM),
            "agent", "--store", self.url, "--rank", str(rank), "--world-size", "64",
            "--namespace", self.namespace, "--command-queue", self.queue_path(rank),
            "--state", self.state_path(rank),
            *options, *([self.halt(rank).last_argument] if self.halts else []),
        )  # fmt: skip
        assert agent.line() == f"ready rank {rank} {self.queue_path(rank)}"
        self.agents[rank] = agent
        return agent

    def client(self, rank: int, timeout: float = 20.0) -> TensorBusClient:
        if self.kind == "embedded":
            client = TensorBusClient.embedded(self.url, rank, self.namespace)
        else:
            if rank not in self.agents:
                self.start_agent(rank)
            client = TensorBusClient(
                rank, self.queue_path(rank), self.state_path(rank), timeout,
                namespace=self.namespace,
            )  # fmt: skip
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
