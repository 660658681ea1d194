"""A sender and two receivers under fire: each a worker with its agent, in processes of their own.

An agent stops itself at a named step of the protocol; then something is killed, and it goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from buses import Halt, halting_program
from processes import PROGRAM, Process, Start, eventually, free_port
from remote_worker import RemoteWorker
from two_hosts import ADDRESSES, TwoHosts

SENDER, FIRST, SECOND = 0, 1, 2
RECEIVERS = (FIRST, SECOND)
BYTES = 24 << 20
SOON = 2.0  # a dead process is reported within

# What makes an agent take a step: a round, the first receiver or the sender registering again.
ROUND = {
    "offered": SENDER, "sent": SENDER, "reading": FIRST, "committing": FIRST, "received": FIRST,
}  # fmt: skip
JOINING = {
    "closing": FIRST, "registering": FIRST, "subscribing": FIRST, "joining": FIRST, "joined": FIRST,
    "subscribed": SENDER, "holding": SENDER, "releasing": SENDER,
}  # fmt: skip
SENDING_ANEW = {"generation begun": SENDER}
VICTIMS = ["sender", "sender's agent", "receiver", "receiver's agent", "store", "nobody"]


@dataclass(frozen=True)
class Shot:
    step: str
    victim: str  # "nobody": the agent only stands still for a while

    @property
    def halted(self) -> int:
        return (ROUND | JOINING | SENDING_ANEW)[self.step]


SHOTS = [Shot(step, victim) for step in ROUND | JOINING | SENDING_ANEW for victim in VICTIMS]


def useful_descriptors(agent: Process) -> int:
    """All but sockets that no table of the kernel knows any more.

    UCX forgets to close one whenever a connection is refused while it asks for it, as it is when
    the host of a dead process is this machine.
    """
    known = {
        line.split()[column]
        for table, column in (("tcp", 9), ("tcp6", 9), ("unix", 6))
        for line in Path(f"/proc/{agent.pid}/net/{table}").read_text().splitlines()[1:]
    }
    count = 0
    for link in Path(f"/proc/{agent.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kind, _, inode = os.readlink(link).partition(":")
            count += kind != "socket" or inode.strip("[]") in known
    return count


class Chaos:
    """On one host or, with `hosts`, the sender and the store on one and the receivers on another.

    For its workers it is what `Bus` is for others.
    """

    def __init__(self, start: Start, folder: Path, hosts: TwoHosts | None) -> None:
        self._start = start
        self._folder = folder
        self._hosts = hosts
        self._port = free_port()
        self._value = 0
        self.namespace = "chaos"
        self.agents: dict[int, Process] = {}
        self.start_store()
        for rank in (SENDER, *RECEIVERS):
            self.start_agent(rank)
        self.workers = {rank: self.start_worker(rank) for rank in (SENDER, *RECEIVERS)}
        for worker in self.workers.values():
            worker.registered()
        self.run_rounds()
        self._descriptors = {rank: useful_descriptors(a) for rank, a in self.agents.items()}

    def _on(self, rank: int) -> list[str]:
        return [] if self._hosts is None else self._hosts.on(int(rank != SENDER))

    def _address(self, rank: int) -> str:
        return "127.0.0.1" if self._hosts is None else ADDRESSES[int(rank != SENDER)]

    def queue_path(self, rank: int) -> str:
        return str(self._folder / f"{rank}.command.lmdb")

    def state_path(self, rank: int) -> str:
        return str(self._folder / f"{rank}.state.lmdb")

    def _halt(self, rank: int) -> Halt:
        return Halt(self._folder / f"{rank}.halt")

    def start_store(self) -> None:
        self._store = self._start(
            *self._on(SENDER), str(PROGRAM), "store", "--host", self._address(SENDER),
            "--port", str(self._port), "--journal", str(self._folder / "journal"),
        )  # fmt: skip
        self._url = self._store.line().removeprefix("ready ")

    def start_agent(self, rank: int) -> Process:
        bind = [] if self._hosts is None else ["--bind", self._address(rank)]
        agent = self._start(
            *self._on(rank), str(halting_program()), "agent", "--store", self._url,
            f"--rank={rank}", "--world-size=3", f"--namespace={self.namespace}",
            f"--command-queue={self.queue_path(rank)}", f"--state={self.state_path(rank)}",
            *bind, self._halt(rank).last_argument,
        )  # fmt: skip
        assert agent.line() == f"ready rank {rank} {self.queue_path(rank)}"
        self.agents[rank] = agent
        return agent

    def start_worker(self, rank: int) -> RemoteWorker:
        sends = rank == SENDER
        return RemoteWorker(
            partial(self._start_script, rank), self, rank,
            side="senders" if sends else "receivers", other="receivers" if sends else "senders",
            size=1 if sends else 2, count=BYTES if sends else BYTES // 2,
        )  # fmt: skip

    def _start_script(self, rank: int, script: str, *arguments: object) -> Process:
        command = [*self._on(rank), sys.executable, "-u", "-c", script]
        return self._start(*command, *map(str, arguments))

    # One shot.

    def fire(self, shot: Shot) -> None:
        agent = self.agents[shot.halted]
        self._halt(shot.halted).arm(shot.step)
        self._provoke(shot)
        self._halt(shot.halted).wait(agent)
        killed = self._kill(shot)
        if agent.is_alive():
            agent.signal(signal.SIGCONT)
        since = time.monotonic()
        if shot.victim == "store":
            self.start_store()
        if shot.step in ROUND:
            self._check_round(shot, since)
        self._recover(shot, killed)
        self.run_rounds()

    def _provoke(self, shot: Shot) -> None:
        """Nobody waits for an answer of the agent that is about to stop."""
        if shot.step in ROUND:
            self._value = self._value % 100 + 1
            assert self.workers[SENDER].ask(f"fill {self._value}") == "filled"
            for rank in RECEIVERS:
                self.workers[rank].start("recv")
            self.workers[SENDER].process.tell("send")
        else:
            registers = FIRST if shot.step in JOINING else SENDER
            self.workers[registers].process.tell("register")

    def _kill(self, shot: Shot) -> Process | None:
        victim = {
            "sender": self.workers[SENDER].process,
            "sender's agent": self.agents[SENDER],
            "receiver": self.workers[FIRST].process,
            "receiver's agent": self.agents[FIRST],
            "store": self._store,
            "nobody": None,
        }[shot.victim]
        if victim is None:
            time.sleep(0.5)
        else:
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
        return victim

    def _check_round(self, shot: Shot, since: float) -> None:
        """Every call ends in time: well, or with the error that the victim explains."""
        allowed: dict[int, set[str]] = {
            "sender": {FIRST: {"PeerLostError"}, SECOND: {"PeerLostError"}},
            "sender's agent": {
                SENDER: {"ConnectionError"}, FIRST: {"PeerLostError"}, SECOND: {"PeerLostError"},
            },
            "receiver": {SENDER: {"PeerLostError"}},
            "receiver's agent": {SENDER: {"PeerLostError"}, FIRST: {"ConnectionError"}},
            "store": {},
            "nobody": {},
        }[shot.victim]  # fmt: skip
        for rank, worker in self.workers.items():
            if not worker.process.is_alive():
                continue
            if rank == SENDER:
                assert worker.process.line() == "started"
            outcome = worker.outcome()
            told = f"{shot}, rank {rank}: {outcome}"
            assert worker.ended_at - since < SOON, told
            if "round" in outcome:
                assert rank == SENDER or worker.sees() == [self._value] * 2, told
                continue
            assert outcome["error"] in allowed.get(rank, set()), told
            if outcome["readers"]:
                assert outcome["readers"]["2"] == "read", told

    def _recover(self, shot: Shot, killed: Process | None) -> None:
        for rank in (SENDER, *RECEIVERS):
            if not self.agents[rank].is_alive():
                self.start_agent(rank)
        asked = {FIRST} if shot.step in JOINING else set()
        asked |= {SENDER} if shot.step in SENDING_ANEW else set()
        for rank, worker in list(self.workers.items()):
            if worker.process is killed:
                self.workers[rank] = self.start_worker(rank)
                asked.add(rank)
        if shot.victim == "sender's agent" and SENDER not in asked:
            self.workers[SENDER].process.tell("register")
            asked.add(SENDER)
        for rank in sorted(asked):
            self._await_registered(rank)

    def _await_registered(self, rank: int) -> None:
        """A registration that its agent's death or a sender's has ended is tried again."""
        for _ in range(5):
            line = self.workers[rank].process.line(60)
            if line == "registered":
                return
            allowed = {"ConnectionError", "PeerLostError", "RuntimeError"}
            assert json.loads(line)["error"] in allowed, f"rank {rank}: {line}"
            self.workers[rank].process.tell("register")
        raise AssertionError(f"rank {rank} cannot register: {line}")

    def run_rounds(self) -> None:
        """Until all receivers take part in the same, with the right contents."""
        self._value = self._value % 100 + 1
        sender = self.workers[SENDER]
        assert sender.ask(f"fill {self._value}") == "filled"
        waiting: set[int] = set()
        end = time.monotonic() + 30
        while True:
            assert time.monotonic() < end, "not all receivers take part again"
            for rank in set(RECEIVERS) - waiting:
                self.workers[rank].start("recv")
            sender.start("send")
            sent = sender.outcome()
            # Who comes back is, for the sender, still the one that was lost.
            assert "round" in sent or sent["error"] == "PeerLostError", sent
            waiting = {rank for rank in RECEIVERS if not self._received(rank, sent)}
            if not waiting:
                return

    def _received(self, rank: int, sent: dict[str, Any]) -> bool:
        """Whether its recv is over: well, if it took part in what was sent."""
        worker = self.workers[rank]
        reads = self.workers[SENDER].readers.get(str(rank)) == "read"
        if not reads and not worker.has_outcome():
            return False
        outcome = worker.outcome()
        if "round" in outcome:
            assert worker.sees() == [self._value] * 2
            assert reads or "error" in sent, (sent, outcome)
        else:
            assert outcome["error"] in {"PeerLostError", "ConnectionError"}, outcome
            worker.start("recv")
            return False
        return True

    def check_descriptors(self) -> None:
        for rank, agent in self.agents.items():
            eventually(
                lambda a=agent, r=rank: useful_descriptors(a) <= self._descriptors[r] + 8,
                f"agent {rank} to have as few descriptors as at first",
            )
