"""Versions of which readers get the changed values only: bit for bit what all of them give."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import tensorbus
import torch
from buses import Bus, together
from links import dtensor, links
from tensorbus import Link, Part, Sharded
from torch_oracle import same_bits

STEPS = 8


def pooled(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Where also an agent in another process can write single elements."""
    tensor: torch.Tensor = tensorbus.empty(shape, dtype)
    return tensor.zero_()


def publishers(bus: Bus, ranks: list[int], **options: object) -> list[Link]:
    return [
        bus.client(rank).link("trainer", expected_world_size=len(ranks), **options)
        for rank in ranks
    ]


def change(whole: torch.Tensor, one_in: int, dice: torch.Generator) -> None:
    """A step of training that changes about one element of so many, by any bits."""
    chosen = torch.randint(0, one_in, whole.shape, generator=dice) == 0
    whole[chosen] = torch.randn(whole.shape, generator=dice)[chosen]


@pytest.mark.proves("E1.1", "E1.3")
def test_who_holds_a_version_gets_the_changed_values(bus: Bus):
    (trainer,) = publishers(bus, [0])
    (engine,) = links(bus, "engine", "trainer", [1], delta=True)
    weights, served = {"w": torch.zeros(100_000)}, {"w": pooled(100_000)}
    modes = []
    for step in range(1, 5):
        weights["w"][step * 100] = step
        trainer.publish("policy", weights, dtype=torch.bfloat16, delta="always")
        assert engine.pull("policy", served) == step
        assert same_bits(served["w"], weights["w"].to(torch.bfloat16))
        modes.append(engine.stats("policy").mode)
    assert modes == ["dense", "delta", "delta", "delta"]
    stats = engine.stats("policy")
    assert (stats.version, stats.why, stats.changed) == (4, "patch", 1 / 100_000)
    assert 0 < stats.patch_bytes < 1000
    assert set(stats.seconds) == {"ask", "fetch", "apply", "verify"}


@pytest.mark.proves("E1.1")
def test_nothing_is_patched_without_a_promise_or_when_it_was_not_kept(bus: Bus):
    (trainer,) = publishers(bus, [0])
    (engine,) = links(bus, "engine", "trainer", [1], delta=True)
    (plain,) = links(bus, "plain", "trainer", [2])
    weights = {"w": torch.arange(1000.0)}
    served, others = {"w": pooled(1000, dtype=torch.float32)}, {"w": torch.zeros(1000)}
    for _ in range(2):
        weights["w"][7] += 1
        trainer.publish("policy", weights, delta="always")
        engine.pull("policy", served)
        plain.pull("policy", others)
    assert engine.stats("policy").mode == "delta"
    with pytest.raises(ValueError, match="delta=True"):
        plain.stats("policy")
    weights["w"][7] += 1
    trainer.publish("policy", weights, delta="always")
    served["w"].fill_(-1.0)
    engine.pull("policy", served, delta=False)
    assert same_bits(served["w"], weights["w"])
    assert engine.stats("policy").mode == "dense"
    with pytest.raises(ValueError, match='"auto", "off" or "always"'):
        trainer.publish("policy", weights, delta="maybe")


@pytest.mark.proves("E1.1")
def test_deltas_are_off_unless_they_are_asked_for(bus: Bus):
    (trainer,) = publishers(bus, [0])
    (engine,) = links(bus, "engine", "trainer", [1], delta=True)
    weights, served = {"w": torch.zeros(1000)}, {"w": pooled(1000, dtype=torch.float32)}
    for step in range(1, 4):
        weights["w"][7] = step
        trainer.publish("policy", weights)
        engine.pull("policy", served)
        assert same_bits(served["w"], weights["w"])
        assert engine.stats("policy").mode == "dense"
    assert engine.stats("policy").why == "switched off"


@pytest.mark.proves("E1.9")
def test_without_memory_for_deltas_all_is_read(bus: Bus):
    (trainer,) = publishers(bus, [0], delta_memory=100)
    (engine,) = links(bus, "engine", "trainer", [1], delta=True)
    weights, served = {"w": torch.zeros(10_000)}, {"w": pooled(10_000, dtype=torch.float32)}
    for step in range(1, 4):
        weights["w"][7] = step
        trainer.publish("policy", weights, delta="always")
        engine.pull("policy", served)
        assert same_bits(served["w"], weights["w"])
    assert engine.stats("policy").why in ("no base", "no room")


Cut = Callable[[torch.Tensor], list[dict]]


def rows(whole: torch.Tensor) -> list[dict]:
    """As FSDP has them."""
    return [
        {"w": dtensor(part.contiguous(), whole.shape, [0, 1], [("S", 0)], rank)}
        for rank, part in enumerate(whole.chunk(2))
    ]


def boxes(whole: torch.Tensor) -> list[dict]:
    """Uneven ones, of which one has two."""
    above, below = whole[:5], whole[5:]
    return [
        {"w": Part(above.clone(), whole.shape, (0, 0))},
        {
            "w": [
                Part(below[:, :3].clone(), whole.shape, (5, 0)),
                Part(below[:, 3:].clone(), whole.shape, (5, 3)),
            ]
        },
    ]


class Columns:
    """Engines that hold half of all columns each, in the type that they like."""

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        self.tensors = [pooled(shape[0], shape[1] // 2, dtype=dtype) for _ in range(2)]
        self.states = [
            {"w": Sharded(tensor, "2:S1", rank, shape)} for rank, tensor in enumerate(self.tensors)
        ]

    def holds(self, whole: torch.Tensor) -> bool:
        halves = whole.chunk(2, dim=1)
        return all(same_bits(*pair) for pair in zip(self.tensors, halves, strict=True))


@pytest.mark.proves("E3.2", "E1.2", "E1.3")
@pytest.mark.parametrize("cut", [rows, boxes])
@pytest.mark.parametrize("seed", range(4))
def test_random_histories_are_what_torch_says(bus: Bus, cut: Cut, seed: int):
    """Resharded and cast; one engine pulls now and then only, one comes late."""
    dice, choices = torch.Generator().manual_seed(seed), random.Random(seed)
    shape = (37, 26)
    shelf = choices.choice([torch.bfloat16, torch.float16, None])
    trainers = publishers(bus, [0, 1])
    kinds = {
        "first": (links(bus, "first", "trainer", [2, 3], delta=True), torch.bfloat16),
        "seldom": (links(bus, "seldom", "trainer", [4, 5], delta=True), torch.float32),
        "late": (links(bus, "late", "trainer", [6, 7], delta=True), torch.float32),
    }
    engines = {name: Columns(shape, dtype) for name, (_, dtype) in kinds.items()}
    whole = torch.randn(shape, generator=dice)
    patched = 0
    for step in range(1, STEPS + 1):
        change(whole, choices.choice([1, 3, 50, 1000]), dice)
        together(
            *(
                lambda link=link, state=state: link.publish(
                    "policy", state, dtype=shelf, delta="always"
                )
                for link, state in zip(trainers, cut(whole), strict=True)
            )
        )
        kept = whole if shelf is None else whole.to(shelf)
        for name, (pulling, dtype) in kinds.items():
            if (name == "seldom" and step % 3 != 0) or (name == "late" and step < STEPS // 2):
                continue
            got = together(
                *(
                    lambda link=link, state=state, last=step - 1: link.pull(
                        "policy", state, newer_than=last
                    )
                    for link, state in zip(pulling, engines[name].states, strict=True)
                )
            )
            assert got == [step, step]
            assert engines[name].holds(kept.to(dtype)), (name, step)
            patched += sum(link.stats("policy").mode == "delta" for link in pulling)
    assert patched >= STEPS


@pytest.mark.proves("E1.3")
def test_tensors_that_moved_are_read_whole(bus: Bus):
    (trainer,) = publishers(bus, [0])
    (engine,) = links(bus, "engine", "trainer", [1], delta=True)
    weights = {"w": torch.arange(1000.0)}
    for step in range(3):
        weights["w"][step] = -1.0
        trainer.publish("policy", weights, delta="always")
        served = {"w": pooled(1000, dtype=torch.float32)}
        engine.pull("policy", served)
        assert same_bits(served["w"], weights["w"])
        assert engine.stats("policy").mode == "dense"


@pytest.mark.proves("E1.3")
def test_a_publisher_that_begins_anew_is_read_whole(bus: Bus):
    client = bus.client(0)
    trainer = client.link("trainer")
    (engine,) = links(bus, "engine", "trainer", [1], delta=True)
    weights, served = {"w": torch.arange(1000.0)}, {"w": pooled(1000, dtype=torch.float32)}
    for _ in range(2):
        weights["w"][7] += 1
        trainer.publish("policy", weights, delta="always")
        engine.pull("policy", served)
    trainer.close()
    trainer = client.link("trainer")
    weights["w"].add_(1.0)
    version = trainer.publish("policy", weights, delta="always")
    assert engine.pull("policy", served, newer_than=2) == version
    assert same_bits(served["w"], weights["w"])
    assert engine.stats("policy").mode == "dense"


@pytest.mark.proves("E1.4", "E1.7")
def test_what_was_fetched_is_applied_later(bus: Bus):
    (trainer,) = publishers(bus, [0])
    (engine,) = links(bus, "engine", "trainer", [1], delta=True)
    weights, served = {"w": torch.arange(1000.0)}, {"w": pooled(1000, dtype=torch.float32)}
    trainer.publish("policy", weights, delta="always")
    first = engine.fetch("policy", served)
    assert (first.version, first.mode, first.bytes) == (1, "dense", 0)
    assert served["w"].count_nonzero() == 0
    assert first.apply() == 1
    assert same_bits(served["w"], weights["w"])
    before = served["w"].clone()
    weights["w"][7] = -1.0
    trainer.publish("policy", weights, delta="always")
    update = engine.fetch("policy", served)
    assert (update.version, update.mode) == (2, "delta")
    assert 0 < update.bytes < 1000
    assert same_bits(served["w"], before)
    trainer.close()  # nothing more is needed of it
    assert update.apply() == 2
    assert same_bits(served["w"], weights["w"])


@pytest.mark.proves("E1.8")
def test_who_wrote_to_its_tensors_all_the_same_is_found_out(bus: Bus):
    (trainer,) = publishers(bus, [0])
    (engine,) = links(bus, "engine", "trainer", [1], delta=True)
    weights, served = {"w": torch.arange(1000.0)}, {"w": pooled(1000, dtype=torch.float32)}
    for step in range(2):
        weights["w"][7] = -step
        trainer.publish("policy", weights, delta="always")
        engine.pull("policy", served)
    assert engine.stats("policy").mode == "delta"
    served["w"][500] = 1e9
    weights["w"][7] = -9.0
    trainer.publish("policy", weights, delta="always")
    engine.pull("policy", served)
    assert engine.stats("policy").why == "overwritten"
    assert same_bits(served["w"], weights["w"])


@pytest.mark.proves("E1.7")
def test_a_fetch_can_read_all_into_other_memory(bus: Bus):
    (trainer,) = publishers(bus, [0])
    (engine,) = links(bus, "engine", "trainer", [1], delta=True)
    weights, served = {"w": torch.arange(1000.0)}, {"w": pooled(1000, dtype=torch.bfloat16)}
    trainer.publish("policy", weights, delta="always")
    update = engine.fetch("policy", served, dense="scratch")
    assert (update.version, update.mode) == (1, "dense")
    assert served["w"].count_nonzero() == 0
    trainer.close()  # nothing more is needed of it
    assert update.apply() == 1
    assert same_bits(served["w"], weights["w"].to(torch.bfloat16))
    with pytest.raises(ValueError, match='"apply" or "scratch"'):
        engine.fetch("policy", served, dense="now")


def patch_again_and_again(bus: Bus, tensor: torch.Tensor, **options: object) -> Iterator[Link]:
    """An engine that has pulled one version after the other, of which little differs."""
    (trainer,) = publishers(bus, [0])
    (engine,) = links(bus, "engine", "trainer", [1], delta=True, **options)
    weights = torch.zeros_like(tensor)
    for step in range(1, 100):
        weights[step * 7] = step
        trainer.publish("policy", {"w": weights}, delta="always")
        engine.pull("policy", {"w": tensor})
        yield engine


@pytest.mark.proves("E1.8")
@pytest.mark.parametrize("verify", ["full", "sample"])
def test_every_nth_version_that_was_patched_is_compared(bus: Bus, verify: str):
    steps = patch_again_and_again(bus, pooled(10_000), verify=verify, verify_every=3)
    verified = [next(steps).stats("policy").verified for _ in range(8)]
    assert verified == [False, False, False, True, False, False, True, False]


@pytest.mark.proves("E1.8")
def test_what_no_sample_saw_is_found_by_verify_every(bus: Bus):
    served = pooled(2_000_000)
    steps = patch_again_and_again(bus, served, verify_every=3)
    for _ in range(3):
        assert not next(steps).stats("policy").verified
    assert next(steps).stats("policy").verified
    served[1_234_567] = 1.0
    whys = [next(steps).stats("policy").why for _ in range(3)]
    assert whys == ["patch", "patch", "differs"]
    assert served[1_234_567] == 0.0
    assert next(steps).stats("policy").why == "patch"
