"""Processes killed in the middle of a round: the right error soon, and the next round goes.

Two receivers, so that one survives what happens to the other. "In the middle": the round is open,
and the agent that moves the bytes has stopped where it begins to read them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from buses import Bus
from processes import ServerProcess, Start, StartServer, eventually
from remote_worker import RemoteWorker

BYTES = 96 << 20
SOON = 2.0
SENDER, FIRST, SECOND = 0, 1, 2


class Round:
    """A sender and two receivers as processes of their own, each with its agent and a store."""

    def __init__(self, bus: Bus, server: ServerProcess, start_python: Start) -> None:
        self.bus = bus
        self.server = server
        self._start_python = start_python
        self.workers: dict[int, RemoteWorker] = {}
        for rank in (SENDER, FIRST, SECOND):
            bus.start_agent(rank)
        for rank in (SENDER, FIRST, SECOND):
            self.start_worker(rank)
        for worker in self.workers.values():
            worker.registered()

    def start_worker(self, rank: int) -> RemoteWorker:
        sends = rank == SENDER
        self.workers[rank] = RemoteWorker(
            self._start_python, self.bus, rank,
            side="senders" if sends else "receivers", other="receivers" if sends else "senders",
            size=1 if sends else 2, count=BYTES if sends else BYTES // 2,
        )  # fmt: skip
        return self.workers[rank]

    def run(self, value: int, ranks: tuple[int, ...] = (FIRST, SECOND)) -> None:
        """A whole round, in which these receivers get the value everywhere."""
        sender = self.workers[SENDER]
        assert sender.ask(f"fill {value}") == "filled"
        for rank in ranks:
            self.workers[rank].start("recv")
        sender.start("send")
        for rank in ranks:
            outcome = self.workers[rank].outcome()
            assert "round" in outcome, outcome
            assert self.workers[rank].sees() == [value, value]
        sent = sender.outcome()
        assert "round" in sent, sent

    def begin(self, moment: str, value: int) -> None:
        """Opens a round. "offered": the first receiver has not asked for it; "reading": it has, and
        its agent has stopped where it reads. The second one just takes part."""
        sender, first, second = (self.workers[rank] for rank in (SENDER, FIRST, SECOND))
        assert sender.ask(f"fill {value}") == "filled"
        second.start("recv")
        if moment == "reading":
            self.bus.halt(FIRST).arm("reading")
            first.start("recv")
        sender.start("send")
        if moment == "reading":
            self.bus.halt(FIRST).wait(self.bus.agents[FIRST])

    def go_on(self, moment: str) -> None:
        if moment == "reading":
            self.bus.agents[FIRST].signal(signal.SIGCONT)

    def run_until_back(self, rank: int, value: int, others: tuple[int, ...]) -> None:
        """Rounds for the others until this one takes part, by itself."""
        worker = self.workers[rank]
        worker.start("recv")
        end = time.monotonic() + 20
        while not worker.has_outcome():
            self.run(value, others)
            assert time.monotonic() < end, "it has not come back"
        outcome = worker.outcome()
        assert "round" in outcome, outcome
        assert worker.sees() == [value, value]


@pytest.fixture
def round_(
    start_server: StartServer,
    start_program: Start,
    start_python: Start,
    unique: str,
    tmp_path: Path,
) -> Iterator[Round]:
    server = start_server(journal=tmp_path / "journal")
    bus = Bus("daemon", server.url, unique, start_program, tmp_path)
    bus.halts = True
    yield Round(bus, server, start_python)
    bus.close()


class Clock:
    def __init__(self) -> None:
        self._begin = time.monotonic()

    def soon(self, *workers: RemoteWorker) -> bool:
        """Whether they were told in time, however late we look."""
        return all(worker.ended_at - self._begin < SOON for worker in workers)


def semaphores_of(worker: RemoteWorker) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"sem.command_*_{worker.process.pid}_*")]


MOMENTS = pytest.mark.parametrize("moment", ["offered", "reading"])


@MOMENTS
@pytest.mark.proves("B3.8", "B3.10", "B3.16", "B3.17", "B5.2", "B5.13", "B5.18")
def test_a_killed_sender(round_: Round, moment: str) -> None:
    sender, first, second = (round_.workers[rank] for rank in (SENDER, FIRST, SECOND))
    round_.begin(moment, 1)
    assert sender.ask("name").startswith("/command_transfer_batch_")
    assert len(semaphores_of(sender)) == 1
    sender.kill()
    clock = Clock()
    round_.go_on(moment)
    if moment == "offered":
        first.start("recv")
    else:
        outcome = first.outcome()
        assert outcome["error"] == "PeerLostError", outcome
        assert "rank 0" in outcome["message"]
        assert clock.soon(first)
    second.outcome()  # it may have read everything before
    eventually(lambda: not semaphores_of(sender), "the semaphore to go")

    # Rounds start again at 1 with the next sender; the receivers are still registered.
    round_.start_worker(SENDER).registered()
    if moment == "offered":
        round_.workers[SENDER].ask("fill 5")
        second.start("recv")
        round_.workers[SENDER].start("send")
        outcome = first.outcome()
        if "error" in outcome:
            # It was called before its agent knew of the kill; after that it waits for the return.
            assert outcome["error"] == "PeerLostError", outcome
            assert "rank 0" in outcome["message"]
            assert clock.soon(first)
            first.start("recv")
            outcome = first.outcome()
        assert outcome == {"round": 1}
        assert [w.outcome() for w in (second, round_.workers[SENDER])] == [{"round": 1}] * 2
        assert first.sees() == [5, 5]
    round_.run(6)


@MOMENTS
@pytest.mark.proves("B3.8", "B3.16", "B3.17", "B5.18")
def test_a_killed_agent_of_the_sender(round_: Round, moment: str) -> None:
    sender, first, second = (round_.workers[rank] for rank in (SENDER, FIRST, SECOND))
    round_.begin(moment, 1)
    round_.bus.agents[SENDER].kill()
    clock = Clock()
    round_.go_on(moment)
    outcome = sender.outcome()
    assert outcome["error"] == "ConnectionError", outcome
    assert "agent 0" in outcome["message"]
    if moment == "reading":
        outcome = first.outcome()
        assert outcome["error"] == "PeerLostError", outcome
        assert "rank 0" in outcome["message"]
        assert clock.soon(first)
    assert clock.soon(sender)
    second.outcome()

    # The same client goes on with the next agent, which knows its pairs.
    round_.bus.start_agent(SENDER)
    assert sender.ask("register") == "registered"
    round_.run(6)


@pytest.mark.proves("B3.8", "B5.18")
def test_a_registration_outlives_the_agent_that_had_begun_it(round_: Round) -> None:
    sender, agent = round_.workers[SENDER], round_.bus.agents[SENDER]
    round_.bus.halt(SENDER).arm("generation begun")
    sender.process.tell("register")
    round_.bus.halt(SENDER).wait(agent)
    agent.kill()
    round_.bus.start_agent(SENDER)
    sender.registered()
    round_.run(6)


@MOMENTS
@pytest.mark.proves("B3.3", "B3.8", "B3.17", "B5.18")
def test_a_killed_receiver(round_: Round, moment: str) -> None:
    sender, first, second = (round_.workers[rank] for rank in (SENDER, FIRST, SECOND))
    round_.begin(moment, 1)
    first.kill()
    clock = Clock()
    round_.go_on(moment)
    outcome = sender.outcome()
    assert outcome["error"] == "PeerLostError", outcome
    assert outcome["readers"] == {"1": "lost", "2": "read"}
    assert clock.soon(sender)
    assert "round" in second.outcome()
    assert second.sees() == [1, 1]

    round_.run(2, (SECOND,))
    round_.start_worker(FIRST).registered()
    round_.run(3)


@MOMENTS
@pytest.mark.proves("B3.3", "B3.8", "B3.17", "B5.15", "B5.18")
def test_a_killed_agent_of_a_receiver(round_: Round, moment: str) -> None:
    sender, first, second = (round_.workers[rank] for rank in (SENDER, FIRST, SECOND))
    round_.begin(moment, 1)
    round_.bus.agents[FIRST].kill()
    clock = Clock()
    outcome = sender.outcome()
    assert outcome["error"] == "PeerLostError", outcome
    assert outcome["readers"] == {"1": "lost", "2": "read"}
    assert clock.soon(sender)
    assert "round" in second.outcome()
    if moment == "reading":
        outcome = first.outcome()
        assert outcome["error"] == "ConnectionError", outcome

    round_.run(2, (SECOND,))
    # Its client finds the next agent and passes the memory again, by itself.
    round_.bus.start_agent(FIRST)
    round_.run_until_back(FIRST, 3, (SECOND,))
    round_.run(4)


@pytest.mark.proves("B1.7", "B5.18")
def test_an_agent_that_was_stopped_cleanly_comes_back_too(round_: Round) -> None:
    agent = round_.bus.agents[FIRST]
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.errors
    round_.run(2, (SECOND,))
    round_.bus.start_agent(FIRST)
    round_.run_until_back(FIRST, 3, (SECOND,))


@MOMENTS
@pytest.mark.proves("B1.7", "B3.16")
def test_a_killed_store_stops_no_round(round_: Round, moment: str) -> None:
    first = round_.workers[FIRST]
    round_.begin(moment, 1)
    round_.server.kill()
    round_.go_on(moment)
    if moment == "offered":
        first.start("recv")
    for rank in (FIRST, SECOND, SENDER):
        outcome = round_.workers[rank].outcome()
        assert "round" in outcome, outcome
    assert first.sees() == [1, 1]
    round_.run(2)

    round_.server.start_again()
    assert round_.workers[SENDER].ask("register") == "registered"
    round_.run(3)


@pytest.mark.proves("B3.10", "B3.17")
@pytest.mark.parametrize("what", ["worker", "agent"])
def test_who_waits_for_a_round_is_told_that_its_sender_is_gone(round_: Round, what: str) -> None:
    for rank in (FIRST, SECOND):
        round_.workers[rank].start("recv")
    (round_.workers if what == "worker" else round_.bus.agents)[SENDER].kill()
    clock = Clock()
    for rank in (FIRST, SECOND):
        outcome = round_.workers[rank].outcome()
        assert outcome["error"] == "PeerLostError", outcome
        assert "0" in outcome["message"]
        assert clock.soon(round_.workers[rank])


@pytest.mark.proves("B3.17")
def test_a_stopped_agent_is_lost_after_five_seconds_and_joins_anew(round_: Round) -> None:
    sender, second = round_.workers[SENDER], round_.workers[SECOND]
    agent = round_.bus.agents[FIRST]
    agent.signal(signal.SIGSTOP)
    begin = time.monotonic()
    second.start("recv")
    sender.start("send")
    outcome = sender.outcome()
    assert outcome["readers"] == {"1": "lost", "2": "read"}, outcome
    assert 4.0 < time.monotonic() - begin < 9.0
    assert "round" in second.outcome()
    agent.signal(signal.SIGCONT)
    round_.run_until_back(FIRST, 3, (SECOND,))


@pytest.mark.proves("B3.17")
def test_a_peer_that_resumes_in_time_goes_on(round_: Round) -> None:
    round_.begin("reading", 1)
    time.sleep(2.0)
    round_.go_on("reading")
    for rank in (FIRST, SECOND, SENDER):
        assert "round" in round_.workers[rank].outcome()
    assert round_.workers[FIRST].sees() == [1, 1]
