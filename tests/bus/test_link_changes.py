"""What may change between two rounds of a link, and what then stays or is planned anew."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorbus
import torch
from buses import Bus, caught, together
from links import dtensor, links, registered
from tensorbus import Link


class Ends:
    """One sender, one receiver, and the plan that they have."""

    def __init__(self, bus: Bus) -> None:
        (self.trainer,) = links(bus, "t", "e", [0])
        (self.engine,) = links(bus, "e", "t", [1])

    def exchange(self, sent: dict, got: dict) -> tuple[Any, Any]:
        """A round; returns what is registered after it."""
        together(
            lambda: self.trainer.send_state_dict("x", sent),
            lambda: self.engine.recv_state_dict("x", got),
        )
        sent_as = registered(self.trainer, "x", send=True)
        return sent_as, registered(self.engine, "x", send=False)


@pytest.fixture
def ends(threads: Bus) -> Ends:
    return Ends(threads)


def same(got: dict, sent: dict) -> bool:
    return set(got) == set(sent) and all(
        same(got[key], sent[key])
        if isinstance(sent[key], dict)
        else torch.equal(torch.as_tensor(got[key]), torch.as_tensor(sent[key]))
        for key in sent
    )


def weights(pooled: bool, **sizes: int) -> dict:
    made = {name: torch.rand(size) for name, size in sizes.items()}
    return {name: tensorbus.share_(each) if pooled else each for name, each in made.items()}


def replace(state: dict) -> None:
    state["w"] = torch.rand(1000)


def replace_behind_the_name(state: dict) -> None:
    state["w"].data = torch.rand(1000)


def resize_there_and_back(state: dict) -> None:
    """A larger storage, and the old shape in it."""
    state["w"].resize_(1_000_000)
    state["w"].resize_(1000)
    state["w"].uniform_()


def stride_differently(state: dict) -> None:
    state["w"] = torch.rand(3000)[::3]


def to_numpy(state: dict) -> None:
    state["w"] = np.random.default_rng(1).random(1000, np.float32)


MOVES = [replace, replace_behind_the_name, resize_there_and_back, stride_differently, to_numpy]


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
@pytest.mark.parametrize("side", ["sender", "receiver", "both"])
def test_a_tensor_elsewhere_of_the_same_shape_needs_no_new_plan(
    ends: Ends, move: Callable[[dict], None], side: str
):
    sent, got = weights(False, w=1000, b=3), weights(False, w=1000, b=3)
    before = ends.exchange(sent, got)
    for _ in range(2):
        if side != "receiver":
            move(sent)
        if side != "sender":
            move(got)
        assert ends.exchange(sent, got) == before
        assert same(got, sent)


@pytest.mark.parametrize("move", [replace, replace_behind_the_name, stride_differently])
def test_a_tensor_in_the_pool_that_has_moved_is_named_before_anything_is_sent(
    ends: Ends, move: Callable[[dict], None]
):
    sent, got = weights(True, w=1000, b=3), weights(True, w=1000, b=3)
    ends.exchange(sent, got)
    there = sent["w"].detach()
    move(sent)
    with pytest.raises(ValueError, match=r'"w".*not where it was'):
        ends.trainer.send_state_dict("x", sent)
    sent["w"] = there
    ends.exchange(sent, got)
    assert same(got, sent)


def test_keys_may_come_in_another_order_or_nested_otherwise(ends: Ends):
    w, b = torch.rand(4), torch.rand(4)
    got = {"a": {"w": torch.zeros(4)}, "a.b": torch.zeros(4)}
    before = ends.exchange({"a": {"w": w, "b": b}}, got)
    for sent in ({"a": {"b": b, "w": w}}, {"a.w": w, "a": {"b": b}}, {"a.b": b, "a.w": w}):
        w += 1
        b -= 1
        assert ends.exchange(sent, got) == before
        assert torch.equal(got["a"]["w"], w)
        assert torch.equal(got["a.b"], b)


def rename(state: dict) -> None:
    state["a"]["v"] = state["a"].pop("w")


def move_into_another_dictionary(state: dict) -> None:
    state["b"] = {"w": state["a"].pop("w")}


def add(state: dict) -> None:
    state["a"]["more"] = torch.rand(2)


def remove(state: dict) -> None:
    del state["a"]["w"]


def grow(state: dict) -> None:
    state["a"]["w"] = torch.rand(5)


def grow_in_place(state: dict) -> None:
    state["a"]["w"].resize_(5).uniform_()


def reshape(state: dict) -> None:
    state["a"]["w"] = torch.rand(2, 2)


def change_type(state: dict) -> None:
    state["a"]["w"] = torch.rand(4).to(torch.float64)


def change_type_but_not_size(state: dict) -> None:
    state["a"]["w"] = torch.arange(4, dtype=torch.int32)


CHANGES = [
    rename, move_into_another_dictionary, add, remove, grow, grow_in_place, reshape, change_type,
    change_type_but_not_size,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_a_plan_depends_on_is_planned_anew(ends: Ends, change: Callable[[dict], None]):
    sent, got = ({"a": weights(False, w=4, u=3)} for _ in range(2))
    sent["a"]["u"] = tensorbus.share_(sent["a"]["u"])
    before = ends.exchange(sent, got)
    change(sent)
    change(got)
    after = ends.exchange(sent, got)
    assert same(got, sent)
    assert before[0] is not after[0]
    assert before[1] is not after[1]
    sent["a"]["u"] += 1
    assert ends.exchange(sent, got) == after
    assert same(got, sent)


def test_other_placements_with_the_same_local_shapes_are_planned_anew(threads: Bus):
    """The two dimensions of a mesh of 2 x 2 share out rows and columns, then columns and rows."""
    trainers, (engine,) = links(threads, "t", "e", [0, 1, 2, 3]), links(threads, "e", "t", [4])
    whole, got = torch.rand(4, 4), torch.zeros(4, 4)
    mesh = torch.arange(4).reshape(2, 2)

    def send(rank: int, dims: tuple[int, int]) -> int:
        local = whole
        for dim, place in zip(dims, divmod(rank, 2), strict=True):
            local = local.chunk(2, dim)[place]
        part = dtensor(local.clone(), [4, 4], mesh, [("S", dim) for dim in dims], rank)
        return trainers[rank].send_state_dict("x", {"w": part})

    def receive(dims: tuple[int, int]) -> int:
        return engine.recv_state_dict("x", {"w": dtensor(got, [4, 4], [0], [("S", dims[0])], 0)})

    for dims in ((0, 1), (0, 1), (1, 0)):
        whole += 1
        together(
            *(lambda rank=rank, dims=dims: send(rank, dims) for rank in range(4)),
            lambda dims=dims: receive(dims),
        )
        assert torch.equal(got, whole)


def types(_rank: int, step: int) -> dict:
    """What was registered before would do for what comes next."""
    dtype = torch.float32 if step % 2 else torch.float64
    return {"w": torch.full((4,), float(step), dtype=dtype)}


def places(rank: int, step: int) -> dict:
    """The two ranks of a side hold the halves of the whole, in turn."""
    start = 2 * ((rank + step) % 2)
    return {"w": tensorbus.Part(torch.full((2,), float(step)), (4,), (start,))}


def names(_rank: int, step: int) -> dict:
    return {f"w{step % 2}": torch.full((4,), float(step))}


def emptied(state: dict) -> dict:
    for each in state.values():
        getattr(each, "tensor", each).zero_()
    return state


def values(state: dict) -> set[float]:
    return {value for each in state.values() for value in getattr(each, "tensor", each).tolist()}


ORDERS = {
    "senders first": [0, 1, 4, 5],
    "receivers first": [4, 5, 0, 1],
    "a receiver last": [0, 1, 4, 5],
    "a sender last": [4, 5, 0, 1],
    "one by one": [4, 0, 5, 1],
}


@pytest.mark.parametrize("content", [types, places, names], ids=lambda each: each.__name__)
@pytest.mark.parametrize("order", list(ORDERS))
def test_all_ranks_change_one_after_the_other(threads: Bus, content: Callable, order: str):
    """Nobody is lost because it registers again, whoever comes when."""
    senders, receivers = links(threads, "t", "e", [0, 1]), links(threads, "e", "t", [4, 5])

    def turn(rank: int, step: int) -> int:
        place = ORDERS[order].index(rank)
        if step > 1:
            time.sleep(0.15 * (place if order == "one by one" else place // 2 + place // 3))
        if rank < 4:
            return senders[rank].send_state_dict("x", content(rank, step))
        state = emptied(content(rank, step))
        version = receivers[rank - 4].recv_state_dict("x", state)
        assert values(state) == {float(step)}
        return version

    for step in (1, 2, 3, 4):
        calls = [lambda rank=rank, step=step: turn(rank, step) for rank in (0, 1, 4, 5)]
        assert together(*calls) == [step] * 4


def test_a_receiver_that_waits_goes_on_waiting_when_the_senders_change(ends: Ends):
    got = {"w": torch.zeros(4)}
    ends.exchange({"w": torch.rand(4)}, got)
    sent = {"w": torch.rand(4, dtype=torch.float64)}

    def send_later() -> None:
        time.sleep(0.3)
        ends.trainer.send_state_dict("x", sent)

    together(lambda: ends.engine.recv_state_dict("x", got), send_later)
    assert torch.equal(got["w"], sent["w"].float())


def refused(link: Link, state: dict) -> str:
    error = caught(lambda: link.send_state_dict("x", state))
    assert isinstance(error, ValueError), error
    return str(error)


def test_what_is_not_in_memory_is_named(ends: Ends):
    nowhere = {"a": torch.ones(1), "b": {"c": torch.empty(2, device="meta")}}
    assert '"b.c"' in refused(ends.trainer, nowhere)
    assert '"b.c"' in refused(ends.engine, nowhere)
