"""Six processes, each with an embedded rank and one with a daemon, that run cases by seed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cases import make_case
from link_cases import make_link_case
from processes import PROGRAM, Process
from two_hosts import ADDRESSES, TwoHosts

PROCESSES = 6
RANKS = [*range(PROCESSES), *range(10, 10 + PROCESSES)]
SCRIPT = Path(__file__).with_name("rank_process.py")
NAMESPACE = "random"


class Cluster:
    """On this host with a store that exists, or half of it on each of two hosts with its own."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self._folder = folder
        self._started: list[Process] = []
        self._hosts = TwoHosts(self._start) if url is None else None
        try:
            self._url = url or self._start_store()
            halves = [range(PROCESSES)]
            if self._hosts is not None:
                halves = [range(PROCESSES // 2), range(PROCESSES // 2, PROCESSES)]
            agents = [self._start_agents(host, half) for host, half in enumerate(halves)]
            for each, half in zip(agents, halves, strict=True):
                for _ in half:
                    each.line()
            self._ranks = [
                self._start_rank(host, index) for host, half in enumerate(halves) for index in half
            ]
            for rank in self._ranks:
                assert rank.line(60) == "ready"
        except BaseException:
            self.close()
            raise

    def _start(self, *command: object, env: dict[str, str] | None = None) -> Process:
        self._started.append(Process([str(part) for part in command], env))
        return self._started[-1]

    def _on(self, host: int) -> list[str]:
        return [] if self._hosts is None else self._hosts.on(host)

    def _start_store(self) -> str:
        store = self._start(*self._on(0), PROGRAM, "store", "--host", ADDRESSES[0], "--port", "0")
        return store.line().removeprefix("ready ")

    def _start_agents(self, host: int, half: range) -> Process:
        bind = [] if self._hosts is None else ["--bind", ADDRESSES[host]]
        return self._start(
            *self._on(host), PROGRAM, "agent", "--store", self._url, f"--namespace={NAMESPACE}",
            f"--rank={10 + half.start}", "--world-size=16", f"--spawn={len(half)}",
            f"--command-queue={self._folder}/{{rank}}.q", f"--state={self._folder}/{{rank}}.s",
            *bind,
        )  # fmt: skip

    def _start_rank(self, host: int, index: int) -> Process:
        environment = {"PYTHONPATH": f"{SCRIPT.parent}:{SCRIPT.parents[1]}"}
        if self._hosts is not None:
            environment["TENSORBUS_BIND"] = ADDRESSES[host]
        arguments = [self._url, NAMESPACE, index, json.dumps(RANKS), self._folder]
        return self._start(
            *self._on(host), sys.executable, "-u", SCRIPT, *arguments, env=environment
        )

    def run(self, seed: int) -> None:
        """A case, in all processes that take part in it."""
        case = make_case(seed, RANKS)
        self._run("batch", seed, {*case.senders, *case.receivers})

    def run_link(self, seed: int) -> None:
        """The same of a link."""
        case = make_link_case(seed, RANKS)
        got = self._run("link", seed, {*case.ranks("senders"), *case.ranks("receivers")})
        assert len(got) == len(case.ranks("receivers"))
        if case.shelf and case.together:
            assert len({tuple(versions) for versions in got.values()}) == 1, got

    def _run(self, kind: str, seed: int, ranks: set[int]) -> dict[str, list[int]]:
        """The versions that each rank says it has got."""
        busy = sorted({rank % 10 for rank in ranks})
        for index in busy:
            self._ranks[index].tell(f"{kind} {seed}")
        answers = {index: json.loads(self._ranks[index].line(100)) for index in busy}
        for index, answer in answers.items():
            if "got" in answer:
                self._ranks[index].tell("close")
        wrong = [
            f"process {index}: {answer['error']}"
            for index, answer in answers.items()
            if "error" in answer
        ]
        assert not wrong, "\n".join(wrong)
        return {rank: each for answer in answers.values() for rank, each in answer["got"].items()}

    def close(self) -> None:
        for process in reversed(self._started):  # the store last: agents say goodbye to it
            process.kill()
