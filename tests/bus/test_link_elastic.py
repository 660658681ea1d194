"""Receivers that come, die and return with another size, while the sender goes on."""

from __future__ import annotations

import json
import math
import signal
import threading
from typing import Any

import pytest
import torch
from buses import Bus, caught, together
from links import dtensor, links
from processes import Process, Start, eventually
from tensorbus import Link, PeerLostError
from tensorbus.dtensor import local_parts
from torch_oracle import Placed


def shards(whole: torch.Tensor, size: int, dim: int, dtype: torch.dtype) -> list[dict]:
    """Empty parts of a tensor over `size` ranks."""
    placed = Placed((size,), (("S", dim),), tuple(range(size)))
    return [
        {
            "w": dtensor(
                placed.local(torch.zeros(whole.shape, dtype=dtype), (rank,)), list(whole.shape),
                list(range(size)), [("S", dim)], rank,
            )
        }
        for rank in range(size)
    ]  # fmt: skip


class Newcomer:
    """Takes versions, on a thread, until it has reached its goal."""

    def __init__(self, link: Link, into: dict) -> None:
        self.link = link
        self.version = 0
        self.goal: float = math.inf
        self._into = into
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self.version < self.goal:
                self.version = self.link.recv_state_dict("x", self._into)
        except Exception as error:
            self._error = error
            self.version = -1

    def finish(self) -> None:
        self._thread.join(20)
        assert self._error is None
        assert self.version == self.goal


@pytest.mark.proves("B3.3")
def test_groups_with_other_layouts_join_a_running_sender(bus: Bus):
    whole = torch.arange(35.0).reshape(5, 7)
    trainers = links(bus, "trainer", "engine", [0, 1])
    sent = shards(whole, 2, 0, torch.float32)
    groups: dict[str, tuple[list[Link], list[dict]]] = {}

    def send_to_all() -> list[int]:
        for rank, part in enumerate(sent):
            part["w"].to_local().copy_(whole.chunk(2, 0)[rank])
        calls = [
            lambda link=link, part=part: link.send_state_dict("x", part)
            for link, part in zip(trainers, sent, strict=True)
        ]
        for receivers, parts in groups.values():
            calls += [
                lambda link=link, part=part: link.recv_state_dict("x", part)
                for link, part in zip(receivers, parts, strict=True)
            ]
        return together(*calls)

    engines = links(bus, "engine", "trainer", [2, 3])
    groups["engine"] = engines, shards(whole, 2, 1, torch.float32)
    assert send_to_all() == [1] * 4
    assert trainers[0].versions("x").keys() == {"trainer", "engine"}

    joining = [
        ("second", [4], [{"w": torch.zeros(5, 7, dtype=torch.bfloat16)}]),
        ("third", [5, 6, 7], shards(whole, 3, 1, torch.float64)),
    ]
    for name, ranks, parts in joining:
        newcomers = [
            Newcomer(*each) for each in zip(links(bus, name, "trainer", ranks), parts, strict=True)
        ]
        version = 0
        while not all(newcomer.version for newcomer in newcomers):
            version = send_to_all()[0]
        whole += 1
        for newcomer in newcomers:
            newcomer.goal = version + 1
        assert send_to_all()[0] == version + 1
        for newcomer in newcomers:
            newcomer.finish()
        groups[name] = [newcomer.link for newcomer in newcomers], parts
        for _, each in groups.values():
            got = torch.cat(local_parts([part["w"] for part in each]), 1)
            assert torch.equal(got, whole.to(got.dtype))
    last = send_to_all()[0]
    everybody = {"trainer": {0: last, 1: last}, "engine": {2: last, 3: last},
                 "second": {4: last}, "third": {5: last, 6: last, 7: last}}  # fmt: skip
    eventually(lambda: trainers[0].versions("x") == everybody, "everybody's version")


ENGINE = """
import json, sys
import numpy as np
import tensorbus

url, namespace, rank, size = sys.argv[1:]
client = tensorbus.TensorBusClient.embedded(url, int(rank), namespace)
link = client.link("engine", "trainer", int(size))
state = {"w": np.zeros(1000, dtype=np.float32), "deep": {"b": np.zeros(3)}}
while True:
    version = link.recv_state_dict("policy", state, timeout=60)
    seen = sorted({float(x) for x in state["w"]} | {float(x) for x in state["deep"]["b"]})
    print(json.dumps([version, seen]))
"""


class Engines:
    """Ranks of the side "engine", each a process of its own that takes every version there is."""

    def __init__(self, bus: Bus, start_python: Start) -> None:
        self._bus = bus
        self._start = start_python
        self.processes: dict[int, Process] = {}

    def start(self, ranks: list[int], size: int) -> None:
        for rank in ranks:
            self.processes[rank] = self._start(
                ENGINE, self._bus.url, self._bus.namespace, rank, size
            )

    def gets(self, rank: int, version: int) -> None:
        """It sees this version, whole."""
        seen = [0, []]
        while seen[0] < version:
            seen = json.loads(self.processes[rank].line(60))
            assert seen[1] == [float(seen[0])]
        assert seen[0] == version


def weights(version: int) -> dict:
    return {
        "w": torch.full((1000,), float(version)),
        "deep": {"b": torch.full((3,), float(version), dtype=torch.float64)},
    }


@pytest.mark.proves("B3.3", "B3.8")
def test_a_group_dies_and_returns_with_another_size(threads: Bus, start_python: Start):
    (trainer,) = links(threads, "trainer", "engine", [0])
    engines = Engines(threads, start_python)
    last = 0

    def send(**options: Any) -> None:
        nonlocal last
        last += 1
        assert trainer.send_state_dict("policy", weights(last), timeout=60, **options) == last

    def send_until_back(ranks: list[int], size: int) -> None:
        """Versions go on without them until they are there."""
        engines.start(ranks, size)
        while not all(engines.processes[rank].has_line(0) for rank in ranks):
            send()
            # Another size is refused while the store still has those who died.
            engines.start([rank for rank in ranks if not engines.processes[rank].is_alive()], size)

    engines.start([1, 2], 2)
    send()
    for rank in (1, 2):
        engines.gets(rank, 1)

    # A rank dies before it has read: the sender is told, and who has read it keeps it.
    for allow_lost in (False, True):
        engines.processes[2].signal(signal.SIGSTOP)
        outcome: list[Exception | None] = []
        sending = threading.Thread(
            target=lambda: outcome.append(caught(lambda: send(allow_lost=allow_lost)))  # noqa: B023
        )
        sending.start()
        engines.gets(1, last)
        engines.processes[2].kill()
        sending.join(20)
        (error,) = outcome
        if allow_lost:
            assert error is None, error
        else:
            assert isinstance(error, PeerLostError), error
            assert dict(error.readers) == {1: "read", 2: "lost"}
        assert trainer.versions("policy")["engine"][1] == last
        send_until_back([2], 2)
        send()
        for rank in (1, 2):
            engines.gets(rank, last)

    # All die, and three come back.
    for rank in (1, 2):
        engines.processes[rank].kill()
    eventually(lambda: trainer.versions("policy").keys() == {"trainer"}, "the engines to go")
    send()
    send_until_back([1, 2, 3], 3)
    send()
    for rank in (1, 2, 3):
        engines.gets(rank, last)
    now = {"trainer": {0: last}, "engine": dict.fromkeys((1, 2, 3), last)}
    eventually(lambda: trainer.versions("policy") == now, "everybody's version")


def test_versions_go_on_when_the_sender_is_a_new_process(threads: Bus):
    (engine,) = links(threads, "engine", "trainer", [1])
    got = weights(0)
    for first in (1, 3):
        (trainer,) = links(threads, "trainer", "engine", [0])
        for version in (first, first + 1):
            versions = together(
                lambda t=trainer, v=version: t.send_state_dict("policy", weights(v)),
                lambda: engine.recv_state_dict("policy", got),
            )
            assert versions == [version, version]
            assert got["w"][0] == version
        trainer._open_client().close()
        if first == 1:
            # A recv that waits meanwhile is told.
            error = caught(lambda: engine.recv_state_dict("policy", got, timeout=1.0))
            assert isinstance(error, TimeoutError | PeerLostError), error


def test_a_sender_rank_that_is_gone_is_named_and_the_next_send_waits_for_it(threads: Bus):
    trainers = links(threads, "trainer", "engine", [0, 1])
    (engine,) = links(threads, "engine", "trainer", [2])
    part = {"w": torch.ones(2)}

    def all_send() -> list[int]:
        return together(
            *(lambda t=t: t.send_state_dict("x", part) for t in trainers),
            lambda: engine.recv_state_dict("x", {"w": torch.zeros(2)}),
        )

    assert all_send() == [1, 1, 1]
    trainers[1]._open_client().close()
    error = caught(lambda: trainers[0].send_state_dict("x", part))
    assert isinstance(error, RuntimeError), error
    assert "rank 1" in str(error)
    with pytest.raises(TimeoutError, match="trainer"):
        trainers[0].send_state_dict("x", part, timeout=0.5)
    trainers[1] = threads.client(1).link("trainer", "engine", 2)
    assert len(set(all_send())) == 1
