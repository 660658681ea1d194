"""Random histories of training, published and pulled with deltas, against torch, bit for bit.

Publishers hold rows, uneven boxes or all of two tensors, engines columns of their own type; engines
pull now and then, ahead of each other, fetch before they apply, write to their tensors and say so,
come late, and publishers begin anew.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tensorbus
import torch
from buses import together
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from links import dtensor
from tensorbus import EndOfStreamError, Link, Part, Sharded, TensorBusClient
from tensorbus.kvstore import StoreServer
from torch_oracle import same_bits

SHAPE = (37, 26)
KINDS = ("pull", "pull", "fetch", "scratch", "overwritten", "named")
TYPES = (torch.float32, torch.bfloat16, torch.float16)
NUMBERS = itertools.count()

publishes = st.tuples(st.just("publish"), st.sampled_from([1, 3, 50, 100_000]))
pulls = st.tuples(st.just("pull"), st.integers(0, 2), st.sampled_from(KINDS))
events = st.one_of(publishes, pulls, pulls, st.tuples(st.just("restart")))
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with StoreServer(port=0) as server:
        yield server


def rows(whole: torch.Tensor) -> list[Any]:
    return [
        dtensor(part.contiguous(), whole.shape, [0, 1], [("S", 0)], rank)
        for rank, part in enumerate(whole.chunk(2))
    ]


def boxes(whole: torch.Tensor) -> list[Any]:
    above, below = whole[:5], whole[5:]
    return [
        Part(above.clone(), whole.shape, (0, 0)),
        [
            Part(below[:, :3].clone(), whole.shape, (5, 0)),
            Part(below[:, 3:].clone(), whole.shape, (5, 3)),
        ],
    ]


CUTS = {"rows": rows, "boxes": boxes}


class Engine:
    """Two ranks with half of all columns each, which pull together."""

    def __init__(self, job: Job, name: str, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.version = 0
        clients = [job.client(), job.client()]
        self.plain = [
            client.link(name, "trainer", expected_world_size=2, delta=True, verify_every=every)
            for client, every in zip(clients, (0, 2), strict=True)
        ]
        self.tensors = [
            tensorbus.empty((SHAPE[0], SHAPE[1] // 2), dtype).fill_(rank) for rank in range(2)
        ]
        self.states = [
            {"w": Sharded(tensor, "2:S1", rank, SHAPE)} for rank, tensor in enumerate(self.tensors)
        ]
        self.patched = 0

    def pull(self, kind: str, newest: int) -> None:
        before = [tensor.clone() for tensor in self.tensors]
        named = {"version": newest}
        options: dict[str, Any] = named if kind == "named" else {"newer_than": newest - 1}
        if kind == "overwritten":
            options["delta"] = False
            for tensor in self.tensors:
                tensor.fill_(-7.0)

        def one(link: Link, state: dict[str, Any]) -> int:
            if kind in ("fetch", "scratch"):
                dense = "scratch" if kind == "scratch" else "apply"
                self.updates.append(link.fetch("policy", state, dense=dense, **options))
                return self.updates[-1].version
            return link.pull("policy", state, **options)

        self.updates: list[tensorbus.Update] = []
        while True:
            calls = zip(self.plain, self.states, strict=True)
            try:
                got = together(*(lambda a=link, b=state: one(a, b) for link, state in calls))
                break
            except EndOfStreamError:  # those who begin anew are not heard of yet
                time.sleep(0.05)
                self.updates.clear()
        assert got == [newest, newest]
        if self.updates:
            assert all(map(same_bits, self.tensors, before)), "a fetch touched the tensors"
            together(*(update.apply for update in self.updates))
        self.patched += sum(link.stats("policy").mode == "delta" for link in self.plain)

    def check(self, published: torch.Tensor) -> None:
        halves = published.to(self.dtype).chunk(2, dim=1)
        assert all(map(same_bits, self.tensors, halves))


class Job:
    def __init__(self, url: str, cut: str, shelf: torch.dtype | None, mode: str) -> None:
        self.url = url
        self.namespace = f"histories{next(NUMBERS)}"
        self.ranks = itertools.count()
        self.clients: list[TensorBusClient] = []
        self.cut, self.shelf, self.mode = CUTS[cut], shelf, mode
        self.dice = torch.Generator().manual_seed(1)
        self.whole = torch.randn(SHAPE, generator=self.dice)
        self.published = self.whole
        self.version = 0
        self.trainer_clients: list[TensorBusClient] = []
        self.trainers: list[Link] = []
        self.engines: dict[int, Engine] = {}

    def client(self) -> TensorBusClient:
        self.clients.append(
            TensorBusClient.embedded(self.url, next(self.ranks), namespace=self.namespace)
        )
        return self.clients[-1]

    def publish(self, one_in: int) -> None:
        chosen = torch.randint(0, one_in, SHAPE, generator=self.dice) == 0
        self.whole[chosen] = torch.randn(SHAPE, generator=self.dice)[chosen]
        if not self.trainers:
            self.trainer_clients = self.trainer_clients or [self.client(), self.client()]
            self.trainers = [
                client.link("trainer", expected_world_size=2) for client in self.trainer_clients
            ]
        calls = zip(self.trainers, self.cut(self.whole), strict=True)
        versions = together(
            *(
                lambda link=link, part=part: link.publish(
                    "policy", {"w": part}, dtype=self.shelf, delta=self.mode
                )
                for link, part in calls
            )
        )
        self.version = max(versions)
        self.published = self.whole.clone() if self.shelf is None else self.whole.to(self.shelf)

    def restart(self) -> None:
        """The publishers leave and begin anew, and so do their numbers."""
        if not self.trainers:
            return
        for link in self.trainers:
            link.close()
        self.trainers = []
        self.publish(3)

    def pull(self, number: int, kind: str) -> None:
        if self.version == 0:
            return
        if number not in self.engines:
            self.engines[number] = Engine(self, f"engine{number}", TYPES[number])
        engine = self.engines[number]
        engine.pull(kind, self.version)
        engine.check(self.published)

    def close(self) -> None:
        for client in self.clients:
            client.close()


def run(server: StoreServer, cut: str, shelf: torch.dtype | None, mode: str, history: Any) -> None:
    job = Job(server.url, cut, shelf, mode)
    try:
        for what, *rest in history:
            getattr(job, what)(*rest)
    finally:
        job.close()


history_of = {
    "cut": st.sampled_from(sorted(CUTS)),
    "shelf": st.sampled_from([None, torch.bfloat16, torch.float16]),
    "mode": st.sampled_from(["always", "always", "auto"]),
    "history": st.lists(events, min_size=6, max_size=16),
}


@pytest.mark.proves("E3.2", "E1.3", "E1.7")
@pytest.mark.timeout(300)
@FEW
@given(**history_of)
def test_any_history_is_what_torch_says(
    server: StoreServer, cut: str, shelf: torch.dtype | None, mode: str, history: list[Any]
) -> None:
    run(server, cut, shelf, mode, history)


@pytest.mark.long
@pytest.mark.timeout(3600)
@MANY
@given(**history_of)
def test_many_more_histories(
    server: StoreServer, cut: str, shelf: torch.dtype | None, mode: str, history: list[Any]
) -> None:
    run(server, cut, shelf, mode, history)
