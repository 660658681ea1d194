"""The ranks of one engine pull together: all return the same version, or say who is missing."""

from __future__ import annotations

import itertools
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from buses import Bus, caught, together
from links import dtensor, links
from processes import Process, Start, eventually
from tensorbus import EndOfStreamError, Link, VersionGoneError

LENGTH = 6_000


def publish(trainer: Link, version: int) -> None:
    assert trainer.publish("policy", {"w": torch.full((LENGTH,), float(version))}) == version


def shard(size: int, rank: int) -> dict[str, Any]:
    local = torch.zeros(LENGTH // size)
    return {"w": dtensor(local, [LENGTH], list(range(size)), [("S", 0)], rank)}


def values(view: dict[str, Any]) -> list[float]:
    return list(view["w"].to_local().unique().tolist())


class Engine:
    """The ranks of one side, each with its shard."""

    def __init__(self, bus: Bus, ranks: list[int]) -> None:
        self.links = links(bus, "engine", "trainer", ranks)
        self.views = [shard(len(ranks), at) for at in range(len(ranks))]

    def call(self, at: int, **options: Any) -> Callable[[], int]:
        return lambda: self.links[at].pull("policy", self.views[at], **options)

    def pull(self, **options: Any) -> int:
        pulled = together(*(self.call(at, **options) for at in range(len(self.links))))
        assert len(set(pulled)) == 1, pulled
        for view in self.views:
            assert values(view) == [float(pulled[0])]
        return int(pulled[0])

    def errors(self, *options: dict[str, Any]) -> list[Exception | None]:
        """What the first so many ranks get when only they pull, each in its own way."""
        return together(
            *(
                lambda at=at, each=each: caught(self.call(at, **each))
                for at, each in enumerate(options)
            )
        )


@pytest.mark.proves("L1.4")
@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_return_the_same_version(bus: Bus, size: int):
    trainer = bus.client(0).link("trainer")
    publish(trainer, 1)
    engine = Engine(bus, list(range(1, size + 1)))
    assert engine.pull() == 1
    publish(trainer, 2)
    publish(trainer, 3)
    assert engine.pull(newer_than=1) == 3
    assert engine.pull(version=2) == 2
    waiting: list[int] = []
    thread = threading.Thread(target=lambda: waiting.append(engine.call(0, newer_than=3)()))
    thread.start()
    publish(trainer, 4)
    rest = together(*(engine.call(at) for at in range(1, size)))
    thread.join(30)
    assert waiting == [4]
    assert set(rest) == {4}


@pytest.mark.proves("L1.4", "L1.5")
def test_ranks_agree_while_slots_are_recycled(bus: Bus):
    trainer = bus.client(0).link("trainer")
    publish(trainer, 1)
    over = threading.Event()

    def publish_on() -> None:
        for version in itertools.count(2):
            if over.is_set():
                return
            publish(trainer, version)

    publishing = threading.Thread(target=publish_on)
    publishing.start()
    try:
        engine = Engine(bus, [1, 2, 3])
        pulled = [engine.pull() for _ in range(15)]
    finally:
        over.set()
        publishing.join(30)
    assert pulled == sorted(pulled)
    assert pulled[-1] > 1


@pytest.mark.proves("L1.4")
def test_who_does_not_pull_is_named(bus: Bus):
    trainer = bus.client(0).link("trainer")
    publish(trainer, 1)
    engine = Engine(bus, [1, 2, 3])
    assert engine.pull() == 1
    sooner, later = engine.errors({"timeout": 0.5}, {"timeout": 4.0})
    # Who gives up does not pull any more, either.
    for late, absent in ((sooner, "rank 3"), (later, "rank 1, 3")):
        assert isinstance(late, TimeoutError)
        assert f'{absent} of side "engine" has not pulled' in str(late), late
    assert engine.call(2, together=False)() == 1, "who pulls for itself waits for nobody"
    assert engine.pull() == 1


@pytest.mark.proves("L1.4")
def test_wishes_that_exclude_each_other_are_refused(bus: Bus):
    trainer = bus.client(0).link("trainer")
    publish(trainer, 1)
    publish(trainer, 2)
    engine = Engine(bus, [1, 2])
    assert engine.pull() == 2
    for refused in engine.errors({"version": 2}, {"version": 3}):
        assert isinstance(refused, ValueError)
        assert "rank 1 for version 2, rank 2 for version 3" in str(refused)
    assert engine.pull() == 2


@pytest.mark.proves("L1.4", "L1.11")
def test_what_one_rank_will_never_get_no_rank_waits_for(bus: Bus):
    trainer = bus.client(0).link("trainer")
    for version in (1, 2, 3):
        publish(trainer, version)
    engine = Engine(bus, [1, 2])
    assert engine.pull() == 3
    gone = caught(engine.call(1, version=1))
    assert isinstance(gone, VersionGoneError), "at once, whoever else pulls"
    waiting: list[Exception | None] = []
    thread = threading.Thread(
        target=lambda: waiting.append(caught(engine.call(0, newer_than=3, timeout=20)))
    )
    thread.start()
    trainer.close()
    thread.join(20)
    assert isinstance(waiting[0], EndOfStreamError)


ENGINE = """
import sys
import numpy as np
import tensorbus
queue, state, namespace, rank, size = sys.argv[1:]
client = tensorbus.TensorBusClient(int(rank), queue, state, namespace=namespace)
link = client.link("engine", "trainer", int(size))
whole = np.zeros(6_000, np.float32)
for line in sys.stdin:
    print("pulls")
    print(link.pull("policy", {"w": whole}, timeout=30), whole.min(), whole.max())
"""


def start_rank(bus: Bus, start: Start, rank: int, size: int) -> Process:
    if rank not in bus.agents:
        bus.start_agent(rank)
    return start(
        sys.executable, "-c", ENGINE, bus.queue_path(rank), bus.state_path(rank), bus.namespace,
        str(rank), str(size),
    )  # fmt: skip


def pull_all(processes: list[Process]) -> set[str]:
    for process in processes:
        process.tell("pull")
    for process in processes:
        assert process.line() == "pulls"
    return {process.line() for process in processes}


@pytest.mark.proves("L1.4")
@pytest.mark.parametrize("lost", [1, 3], ids=["the lowest rank", "another rank"])
def test_a_rank_that_is_killed_holds_nobody_up_for_longer_than_the_timeout(
    daemons: Bus, start_program: Start, lost: int
):
    trainer = daemons.client(0).link("trainer")
    publish(trainer, 1)
    processes = [start_rank(daemons, start_program, rank, 3) for rank in (1, 3)]
    (link,) = [daemons.client(2).link("engine", "trainer", 3)]
    view = {"w": torch.zeros(LENGTH)}
    pulled = together(lambda: link.pull("policy", view), lambda: pull_all(processes))
    assert pulled == [1, {"1 1.0 1.0"}]
    (dies,) = [process for rank, process in zip((1, 3), processes, strict=True) if rank == lost]
    dies.kill()

    named = re.compile(rf"\b{lost}\b.* of side")

    def names_it() -> bool:
        error = caught(lambda: link.pull("policy", view, timeout=0.5))
        return isinstance(error, TimeoutError) and named.search(str(error)) is not None

    eventually(names_it, "the lost rank to be named")
    publish(trainer, 2)
    again = [
        start_rank(daemons, start_program, lost, 3) if process is dies else process
        for process in processes
    ]
    pulled = together(lambda: link.pull("policy", view), lambda: pull_all(again))
    assert pulled == [2, {"2 2.0 2.0"}]
