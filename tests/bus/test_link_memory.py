"""The memory that a link takes for tensors that others cannot map as they are."""

import gc
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorbus
import torch
from buses import Bus, together
from links import is_sending, links
from processes import eventually
from tensorbus import Link
from tensorbus.pool import use
from tensorbus.stage import place_of

MIB = 1 << 20


def round_trip(trainer: Link, engine: Link, sent: dict, got: dict) -> None:
    together(lambda: trainer.send_state_dict("x", sent), lambda: engine.recv_state_dict("x", got))
    for name, tensor in sent.items():
        assert torch.equal(got[name], torch.as_tensor(tensor).to(got[name].dtype)), name


def state(sizes: list[int]) -> dict[str, torch.Tensor]:
    return {str(n): torch.full((size,), n + 1, dtype=torch.uint8) for n, size in enumerate(sizes)}


def like(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


@pytest.fixture
def settled() -> Iterator[Callable[[], dict[str, int]]]:
    """The use of the pool, without what is left of others. One small block keeps the segment that
    all small ones share."""
    keeper = tensorbus.empty(1)

    def look() -> dict[str, int]:
        gc.collect()
        tensorbus.pool.trim()
        return use()

    yield look
    del keeper


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, float]:
    """In MiB."""
    return {name: (after[name] - before[name]) / MIB for name in before}


def test_a_stage_takes_what_it_holds(threads: Bus, settled):
    """Sizes that were rounded up by a fifth each, and of which two left a third of a segment."""
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    sent = state([21 * MIB, 21 * MIB, 21 * MIB, 4097, 4097, 4097, 0])
    before = settled()
    round_trip(trainer, engine, sent, like(sent))
    more = grown(before, use())
    assert 63 < more["lent"] < 64
    assert 63 < more["reserved"] < 64


def test_a_tensor_that_is_shared_later_gets_its_stage(bus: Bus, settled):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    model = torch.nn.Linear(1 << 10, 5 << 11, bias=False)  # 40 MiB
    sent = {"array": np.full(1000, 7), **model.state_dict()}
    got = {name: torch.zeros(tensor.shape) for name, tensor in sent.items()}
    before = settled()
    round_trip(trainer, engine, sent, got)
    assert 40 <= grown(before, settled())["lent"] < 41, "the stage"
    with torch.no_grad():
        model.weight.add_(1.0)
    tensorbus.share_(model.weight)
    sent["array"] = tensorbus.share_(sent["array"])
    assert 40 <= grown(before, settled())["lent"] < 41, "the stage, which is the tensor now"
    for value in (1.0, 2.0):
        sent.update(model.state_dict())
        round_trip(trainer, engine, sent, got)
        with torch.no_grad():
            model.weight.fill_(value)
    sent["weight"] = sent["weight"].clone()
    with pytest.raises(ValueError, match=r'"weight".* is not where it was'):
        trainer.send_state_dict("x", sent)


def test_a_stage_that_is_lent_or_anothers_is_not_taken(threads: Bus, settled):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    sent, got = state([40 * MIB]), state([40 * MIB])
    before = settled()
    round_trip(trainer, engine, sent, got)
    sending = threading.Thread(target=lambda: trainer.send_state_dict("x", sent))
    sending.start()
    eventually(lambda: is_sending(trainer, "x"), "the send to begin")
    tensorbus.share_(sent["0"])
    assert 80 <= grown(before, settled())["lent"] < 81
    engine.recv_state_dict("x", got)
    sending.join(20)
    sent["0"].fill_(9)
    round_trip(trainer, engine, sent, got)
    # A view of the same storage is another tensor.
    view = state([40 * MIB])["0"]
    sent = {"0": view}
    round_trip(trainer, engine, sent, got)
    assert place_of(view[1:]) is None
    assert place_of(torch.zeros(40 * MIB, dtype=torch.uint8)) is None
    assert place_of(view) is None, "the stage was made for the tensor before"
    round_trip(trainer, engine, sent, got)


def test_another_stage_takes_the_place_of_the_old_one(threads: Bus, settled):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    before = settled()
    for size in (40, 60, 35):
        sent = state([size * MIB])
        round_trip(trainer, engine, sent, like(sent))
        assert size <= grown(before, use())["reserved"] < size + 1
    trainer.close()
    assert grown(before, settled())["lent"] < 1
