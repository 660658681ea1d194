"""Boxes against slices of the whole, with torch as the oracle, bit for bit."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import random_bits, strided_copy, strided_place
from tensorbus import _core
from torch_oracle import CONVERTIBLE, bits, cast, same_bits

SHAPES = st.lists(st.integers(0, 7), max_size=4)
TYPES = st.tuples(st.sampled_from(CONVERTIBLE), st.sampled_from(CONVERTIBLE))
NO_DEADLINE = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}

Box = tuple[int, list[int], list[int]]  # rank, start, shape


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    # Threads cut torch's loops, and every cut changes which code converts a NaN.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@st.composite
def boxes(draw: st.DrawFn, shape: list[int], beyond: int) -> list[Box]:
    """That may overlap, be empty, and reach so far beyond the end."""
    found = []
    for _ in range(draw(st.integers(1, 8))):
        start = [draw(st.integers(0, size + beyond)) for size in shape]
        local = [
            draw(st.integers(0, max(0, size + beyond - begin)))
            for size, begin in zip(shape, start, strict=True)
        ]
        found.append((draw(st.integers(0, 5)), start, local))
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    shape = draw(SHAPES)
    beyond = draw(st.sampled_from([0, 0, 3]))
    return shape, draw(boxes(shape, beyond)), draw(boxes(shape, beyond)), *draw(TYPES)


def inside(shape: list[int], box: Box) -> tuple[slice, ...]:
    """What of the whole a box holds."""
    _, start, local = box
    ends = (min(begin + size, end) for begin, size, end in zip(start, local, shape, strict=True))
    return tuple(slice(min(begin, end), end) for begin, end in zip(start, ends, strict=True))


def local_slices(shape: list[int], box: Box) -> tuple[slice, ...]:
    return tuple(slice(0, each.stop - each.start) for each in inside(shape, box))


def check(case: tuple[Any, ...], seed: int) -> None:
    shape, sources, targets, source_type, target_type = case
    generator = torch.Generator().manual_seed(seed)
    whole = random_bits(shape, source_type, generator)
    held = torch.zeros(shape, dtype=torch.bool)
    given_tensors = []
    for box in sources:
        local = random_bits(box[2], source_type, generator)
        local[local_slices(shape, box)] = whole[inside(shape, box)]
        held[inside(shape, box)] = True
        given_tensors.append(strided_copy(local, generator))
    places = [strided_place(torch.Size(box[2]), target_type, generator) for box in targets]
    before = [place.clone() for _, place in places]
    missing = _core.redistribute_boxes(
        shape,
        given_tensors,
        [(rank, start) for rank, start, _ in sources],
        [place for _, place in places],
        [(rank, start) for rank, start, _ in targets],
    )
    expected = cast(whole, target_type)
    for box, (_, place), old in zip(targets, places, before, strict=True):
        mask = torch.zeros(box[2], dtype=torch.bool)
        mask[local_slices(shape, box)] = held[inside(shape, box)]
        new = old.clone()
        new[local_slices(shape, box)] = expected[inside(shape, box)]
        want = _chosen(mask, new, old)
        assert same_bits(place, want)
    asked = [(box[0], at) for box in targets for at in _elements(inside(shape, box))]
    not_held = sorted((rank, at) for rank, at in asked if not held[at])
    told = [
        (rank, at)
        for rank, start, local in missing
        for at in _elements(inside(shape, (rank, start, local)))
    ]
    assert sorted(told) == not_held


def _chosen(mask: torch.Tensor, yes: torch.Tensor, no: torch.Tensor) -> torch.Tensor:
    """torch.where for any type."""
    return torch.where(mask, bits(yes), bits(no)).view(yes.dtype)


def _elements(slices: tuple[slice, ...]) -> list[tuple[int, ...]]:
    ranges = [range(each.start, each.stop) for each in slices]
    found: list[tuple[int, ...]] = [()]
    for each in ranges:
        found = [(*at, index) for at in found for index in each]
    return found


@pytest.mark.proves("L2.3", "L2.4")
@pytest.mark.timeout(600)
@settings(max_examples=1500, **NO_DEADLINE)
@given(cases(), st.integers(0, 2**31))
def test_boxes_are_slices_of_the_whole(case: tuple[Any, ...], seed: int):
    check(case, seed)


@pytest.mark.long
@pytest.mark.proves("L2.3", "L2.4")
@pytest.mark.timeout(3600)
@settings(max_examples=50_000, **NO_DEADLINE)
@given(cases(), st.integers(0, 2**31))
def test_many_boxes_are_slices_of_the_whole(case: tuple[Any, ...], seed: int):
    check(case, seed)
