"""Two publishers and two readers that never stop, under fire: each a worker with its agent.

An agent stops itself at a named step of the shelf; then something is killed, and it goes on. Every
publisher fills its half of the tensor with a number that nobody else uses and tells it before the
call: whatever is pulled can be traced back. With deltas it changes some elements only, and the
number is a checksum of the half.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buses import Halt, halting_program
from processes import PROGRAM, Process, Start, free_port
from two_hosts import ADDRESSES, TwoHosts

PUBLISHERS = (0, 1)
READERS = (2, 3)
ROWS = 200_000
RECOVERY = 60.0  # seconds in which everybody must be back at work

# Whose agent takes the step, again and again.
STEPS = {
    "slot taken": 0, "published": 1, "subscribed": 0, "subscribing": 2, "reading": 2, "received": 2,
}  # fmt: skip
# With deltas.
DELTA_STEPS = {
    "slot taken": 0, "published": 1, "patch offered": 0, "fetching": 2, "applying": 2, "reading": 2,
    "subscribing": 2,
}  # fmt: skip
# These come only with somebody who begins anew.
REJOINING = {"subscribed": 2, "subscribing": 2}
DELTA_REJOINING = REJOINING | {"reading": 2}
VICTIMS = [
    "publisher", "publisher's agent", "reader", "reader's agent", "both publishers", "store",
    "nobody",
]  # fmt: skip
# What a fault may be called at those who are left.
EXPECTED = {"PeerLostError", "ConnectionError", "TimeoutError", "RuntimeError"}

WORKER = """
import json, sys, time, zlib
import numpy as np
import tensorbus

queue, state, namespace, rank, role, rows, base, delta = sys.argv[1:]
rank, rows, value, delta = int(rank), int(rows), int(base), delta == "delta"
dice = np.random.default_rng(value)

def tell(**what):
    print(json.dumps(what), flush=True)

def train(half, value):
    # Returns the number by which the half is known.
    if not delta:
        half.fill(value)
        return value
    half[dice.random(half.shape) < dice.choice([0.0001, 0.01, 0.5])] = value
    half[0] = value
    return zlib.crc32(half)

def known_by(half):
    if delta:
        return [zlib.crc32(np.ascontiguousarray(half))] * 2
    return [int(half.min()), int(half.max())]

client = tensorbus.TensorBusClient(rank, queue, state, namespace=namespace)
if role == "publisher":
    link = client.link("trainer", expected_world_size=2)
    half = np.zeros((rows // 2, 2), np.int64)
    part = tensorbus.Part(half, (rows, 2), (rank * (rows // 2), 0))
    while True:
        value += 1
        number = train(half, value)
        tell(filled=number)
        try:
            mode = "always" if delta else "off"
            version = link.publish("policy", {"w": part}, timeout=10.0, delta=mode)
            tell(published=version, value=number)
        except Exception as error:
            tell(error=type(error).__name__, message=str(error))
            time.sleep(0.02)
else:
    link = client.link(f"engine {rank}", "trainer", delta=delta)
    whole = tensorbus.empty((rows, 2), "int64") if delta else np.zeros((rows, 2), np.int64)
    while True:
        try:
            version = link.pull("policy", {"w": whole}, timeout=10.0)
            halves = [whole[: rows // 2], whole[rows // 2 :]]
            mode = link.stats("policy").mode if delta else "dense"
            tell(pulled=version, values=[known_by(half) for half in halves], mode=mode)
        except Exception as error:
            tell(error=type(error).__name__, message=str(error))
        time.sleep(0.005)
"""


@dataclass(frozen=True)
class Shot:
    step: str
    victim: str  # "nobody": the agent only stands still for a while


SHOTS = [Shot(step, victim) for step in STEPS for victim in VICTIMS]
DELTA_SHOTS = [Shot(step, victim) for step in DELTA_STEPS for victim in VICTIMS]


@dataclass
class Written:
    """A number that a publisher has filled its half with."""

    rank: int
    version: int | None = None  # none: the call has not returned, or raised


@dataclass
class Record:
    """All that workers have told."""

    written: dict[int, Written] = field(default_factory=dict)
    pulls: list[tuple[int, list[list[int]]]] = field(default_factory=list)  # version, halves
    errors: dict[int, str] = field(default_factory=dict)  # the last of each rank
    patched: int = 0  # of the pulls

    def take(self, rank: int, told: dict[str, Any]) -> None:
        if "filled" in told:
            self.written[told["filled"]] = Written(rank)
        elif "published" in told:
            self.written[told["value"]].version = told["published"]
        elif "pulled" in told:
            self.pulls.append((told["pulled"], told["values"]))
            self.patched += told["mode"] == "delta"
        else:
            assert told["error"] in EXPECTED, f"rank {rank}: {told}"
            self.errors[rank] = told["message"]

    def knows_all(self) -> bool:
        """Whether everything that was pulled was announced; a publisher's line may be under way."""
        return all(least in self.written for _, halves in self.pulls for least, _ in halves)

    def check(self) -> None:
        for version, halves in self.pulls:
            for rank, (least, most) in enumerate(halves):
                told = f"version {version} with {halves}"
                assert least == most, f"{told}: the half of rank {rank} is torn"
                written = self.written[least]
                assert written.rank == rank, f"{told} has the half of another rank"
                assert written.version in (None, version), f"{told}: {written}"


class ShelfChaos:
    """On one host or, with `hosts`, publishers and the store on one and readers on another."""

    delta = False
    steps = STEPS
    rejoining = REJOINING

    def __init__(self, start: Start, folder: Path, hosts: TwoHosts | None) -> None:
        self._start = start
        self._folder = folder
        self._hosts = hosts
        self._port = free_port()
        self._starts = 0
        self.record = Record()
        self.agents: dict[int, Process] = {}
        self.workers: dict[int, Process] = {}
        self._start_store()
        for rank in (*PUBLISHERS, *READERS):
            self._start_agent(rank)
        for rank in (*PUBLISHERS, *READERS):
            self._start_worker(rank)
        self._await_work("the start")

    def _on(self, rank: int) -> list[str]:
        return [] if self._hosts is None else self._hosts.on(int(rank in READERS))

    def _address(self, rank: int) -> str:
        return "127.0.0.1" if self._hosts is None else ADDRESSES[int(rank in READERS)]

    def _file(self, rank: int, kind: str) -> str:
        return str(self._folder / f"{rank}.{kind}")

    def _halt(self, rank: int) -> Halt:
        return Halt(Path(self._file(rank, "halt")))

    def _start_store(self) -> None:
        self._store = self._start(
            *self._on(0), str(PROGRAM), "store", "--host", self._address(0),
            "--port", str(self._port), "--journal", str(self._folder / "journal"),
        )  # fmt: skip
        self._url = self._store.line().removeprefix("ready ")

    def _start_agent(self, rank: int) -> None:
        bind = [] if self._hosts is None else ["--bind", self._address(rank)]
        agent = self._start(
            *self._on(rank), str(halting_program()), "agent", "--store", self._url,
            f"--rank={rank}", "--world-size=4", "--namespace=shelves",
            f"--command-queue={self._file(rank, 'queue')}", f"--state={self._file(rank, 'state')}",
            *bind, self._halt(rank).last_argument,
        )  # fmt: skip
        assert agent.line().startswith(f"ready rank {rank}")
        self.agents[rank] = agent

    def _start_worker(self, rank: int) -> None:
        self._starts += 1
        role = "publisher" if rank in PUBLISHERS else "reader"
        self.workers[rank] = self._start(
            *self._on(rank), sys.executable, "-u", "-c", WORKER, self._file(rank, "queue"),
            self._file(rank, "state"), "shelves", str(rank), role, str(ROWS),
            str(self._starts * 1_000_000_000), "delta" if self.delta else "dense",
        )  # fmt: skip

    # One shot.

    def fire(self, shot: Shot) -> None:
        halted = self.steps[shot.step]
        agent = self.agents[halted]
        self._halt(halted).arm(shot.step)
        if shot.step in self.rejoining:
            self._restart_worker(self.rejoining[shot.step])
        self._halt(halted).wait(agent)
        self._kill(shot.victim)
        if agent.is_alive():
            agent.signal(signal.SIGCONT)
        self._recover()
        self._await_work(str(shot))
        self.record.check()

    def _restart_worker(self, rank: int) -> None:
        self._end(self.workers[rank])
        self._drain(rank)
        self._start_worker(rank)

    def _kill(self, victim: str) -> None:
        killed = {
            "publisher": [self.workers[0]],
            "publisher's agent": [self.agents[0]],
            "reader": [self.workers[2]],
            "reader's agent": [self.agents[2]],
            "both publishers": [self.workers[0], self.workers[1]],
            "store": [self._store],
            "nobody": [],
        }[victim]
        if not killed:
            time.sleep(0.5)
        for process in killed:
            self._end(process)

    def _end(self, process: Process) -> None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def _recover(self) -> None:
        if not self._store.is_alive():
            self._start_store()
        for rank, agent in list(self.agents.items()):
            if not agent.is_alive():
                self._start_agent(rank)
        for rank, worker in list(self.workers.items()):
            if not worker.is_alive():
                self._drain(rank)
                self._start_worker(rank)

    def _drain(self, rank: int) -> list[dict[str, Any]]:
        """What a worker has told since the last time."""
        told = []
        for line in self.workers[rank].lines_so_far():
            if not line.endswith("}"):
                continue  # it was killed while it wrote this one
            told.append(json.loads(line))
            self.record.take(rank, told[-1])
        return told

    def _await_work(self, after: str) -> None:
        """Until both publishers have a new version and both readers have pulled one as new."""
        end = time.monotonic() + RECOVERY
        fresh: dict[int, int] = {}
        newest: dict[int, int] = {}
        while True:
            for rank in self.workers:
                for told in self._drain(rank):
                    if "published" in told:
                        fresh.setdefault(rank, told["published"])
                    if "pulled" in told:
                        newest[rank] = told["pulled"]
            seen = [newest.get(reader, 0) for reader in READERS]
            if len(fresh) == 2 and min(seen) >= max(fresh.values()) and self.record.knows_all():
                return
            assert time.monotonic() < end, f"after {after}: {fresh}, {newest}, {self.record.errors}"
            time.sleep(0.01)


class DeltaChaos(ShelfChaos):
    """Readers get the changed values only, whenever they hold a version."""

    delta = True
    steps = DELTA_STEPS
    rejoining = DELTA_REJOINING
