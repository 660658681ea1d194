"""Ranks that are through with their part and end, while others still send and receive."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from buses import Bus, caught, together
from links import dtensor, links
from tensorbus import PeerLostError, Replicate, Shard
from torch_oracle import Placed

ROUNDS = 3
SHAPE = (5, 4)


def random_side(dice: random.Random, first: int) -> tuple[list[int], Placed]:
    size = dice.randint(1, 3)
    placement = dice.choice([("R",), ("S", 0), ("S", 1)])
    return list(range(first, first + size)), Placed((size,), (placement,), tuple(range(size)))


@pytest.mark.proves("B3.10")
@pytest.mark.parametrize("seed", range(12))
def test_three_rounds_then_close(threads: Bus, seed: int):
    """Every rank closes and ends as soon as its own calls have returned."""
    dice = random.Random(seed)
    senders, sent = random_side(dice, 0)
    readers, read = random_side(dice, 10)
    wholes = [torch.rand(SHAPE) for _ in range(ROUNDS)]
    got: dict[int, list[torch.Tensor]] = {rank: [] for rank in readers}

    def run(rank: int, ranks: list[int], placed: Placed, sends: bool) -> None:
        client = threads.client(rank)
        names = ("train", "infer") if sends else ("infer", "train")
        placements = [Replicate() if p[0] == "R" else Shard(p[1]) for p in placed.placements]
        client.init_pair("p", *names, len(ranks), (len(ranks),), placements)
        place = (ranks.index(rank),)
        tensor = placed.local(torch.zeros(SHAPE), place).clone()
        handler = client.register_tensors("b", [(tensor, "p")])
        for whole in wholes:
            if sends:
                tensor.copy_(placed.local(whole, place))
                handler.transfer("send", blocking=True, timeout=20)
            else:
                handler.transfer("recv", blocking=True, timeout=20)
                got[rank].append(tensor.clone())
        handler.close()
        client.close()

    together(
        *(lambda rank=rank: run(rank, senders, sent, True) for rank in senders),
        *(lambda rank=rank: run(rank, readers, read, False) for rank in readers),
    )
    for rank in readers:
        for whole, received in zip(wholes, got[rank], strict=True):
            assert torch.equal(received, read.local(whole, (readers.index(rank),)))


@pytest.mark.proves("B3.10")
def test_who_sends_on_is_told_who_has_ended_it(bus: Bus):
    trainers = links(bus, "t", "e", [0, 1])
    (engine,) = links(bus, "e", "t", [2])
    sent = {"w": torch.ones(3)}
    together(
        *(lambda link=link: link.send_state_dict("x", sent) for link in trainers),
        lambda: engine.recv_state_dict("x", {"w": torch.zeros(3)}),
    )
    trainers[1].close()
    # The engine leaves, too, and may be heard of first: such a send finds it lost, or finds nobody.
    said = ""
    while "has ended it" not in said:
        error = caught(lambda: trainers[0].send_state_dict("x", sent))
        assert error is None or isinstance(error, PeerLostError | RuntimeError)
        said = str(error)
    assert "rank 1 has ended it after round 1" in said


@pytest.mark.proves("B3.5", "B6.4")
def test_names_that_change_at_every_step(bus: Bus):
    """Two senders with parts of a tensor, whose name alternates, in step with their receiver."""
    trainers = links(bus, "t", "e", [0, 1])
    (engine,) = links(bus, "e", "t", [2])
    steps = 20
    barrier = threading.Barrier(3)

    def send(rank: int) -> list[int]:
        versions = []
        for step in range(steps):
            part = torch.full((2, 4), float(step))
            sent = {"ab"[step % 2]: dtensor(part, (4, 4), [0, 1], [("S", 0)], rank)}
            barrier.wait(30)
            versions.append(trainers[rank].send_state_dict("x", sent, timeout=20))
        return versions

    def receive() -> list[int]:
        versions = []
        for step in range(steps):
            got = {"ab"[step % 2]: torch.zeros(4, 4)}
            barrier.wait(30)
            versions.append(engine.recv_state_dict("x", got, timeout=20))
            assert torch.equal(got["ab"[step % 2]], torch.full((4, 4), float(step)))
        return versions

    assert (
        together(lambda: send(0), lambda: send(1), receive, timeout=120)
        == [list(range(1, steps + 1))] * 3
    )


@pytest.mark.proves("B6.1")
@pytest.mark.parametrize("rounds", [0, 1])
def test_who_has_nothing_to_read_does_not_wait_for_a_sender_that_has_closed(
    threads: Bus, rounds: int
) -> None:
    a, b = threads.client(0), threads.client(1)
    together(
        lambda: a.init_pair("p", "a", "b", 1, (1,), [Replicate()]),
        lambda: b.init_pair("p", "b", "a", 1, (1,), [Replicate()]),
    )
    send, recv = together(
        lambda: a.register_tensors("x", [(torch.empty(0), "p")]),
        lambda: b.register_tensors("x", [(torch.empty(0), "p")]),
    )
    for _ in range(rounds):
        together(
            lambda: send.transfer("send", blocking=True),
            lambda: recv.transfer("recv", blocking=True),
        )
    send.close()
    a.close()
    recv.transfer("recv", blocking=True, timeout=20)
