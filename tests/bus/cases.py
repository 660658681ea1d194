"""Random redistributions, each made from a seed in every process that takes part in it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorbus
import torch
from layouts import random_bits, strided_place
from torch_oracle import CONVERTIBLE, COPY_ONLY, Placed, bits, cast, reduce

OPS = ["sum", "max", "min", "product"]


@dataclass(frozen=True)
class CaseTensor:
    pair: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    target_dtype: torch.dtype


@dataclass(frozen=True)
class Case:
    seed: int
    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    pairs: list[tuple[Placed, Placed]]
    tensors: list[CaseTensor]
    rounds: int
    queued: bool  # all rounds are asked for before the first is over, with the same contents
    bucket_size: int | None
    verify: str

    @property
    def reverses(self) -> bool:
        return not any(source.partial_dims() for source, _ in self.pairs)

    def ranks(self, side: str) -> tuple[int, ...]:
        return self.senders if side == "senders" else self.receivers

    def placed(self, tensor: CaseTensor, side: str) -> Placed:
        return self.pairs[tensor.pair][side == "receivers"]

    def dtype(self, tensor: CaseTensor, side: str) -> torch.dtype:
        return tensor.dtype if side == "senders" else tensor.target_dtype

    def held(self, tensor: CaseTensor, side: str, rank: int, step: int) -> torch.Tensor:
        """What a rank of a side that sends holds in a step."""
        placed = self.placed(tensor, side)
        at = placed.coordinates()[rank]
        return placed.local(self._wholes(tensor, side, step)[_key(placed, at)], at)

    def expected(self, tensor: CaseTensor, side: str, rank: int, step: int) -> torch.Tensor:
        """What torch holds at a rank of the side that receives."""
        source, target = self.placed(tensor, other(side)), self.placed(tensor, side)
        whole = reduce(source, self._wholes(tensor, other(side), step), self.dtype(tensor, side))
        return target.local(whole, target.coordinates()[rank])

    def _wholes(self, tensor: CaseTensor, side: str, step: int) -> dict:
        """The whole tensor, by the place in the Partial dimensions."""
        placed = self.placed(tensor, side)
        number = self.tensors.index(tensor)
        generator = torch.Generator().manual_seed(self.seed * 1000 + number * 10 + step)
        dtype = self.dtype(tensor, side)
        wholes: dict[tuple[int, ...], torch.Tensor] = {}
        for at in placed.coordinates().values():
            key = _key(placed, at)
            if key in wholes:
                continue
            if placed.partial_dims():
                small = torch.randint(0, 5, tensor.shape, generator=generator)
                wholes[key] = cast(small, dtype)
            else:
                wholes[key] = random_bits(tensor.shape, dtype, generator)
        return wholes


def other(side: str) -> str:
    return "receivers" if side == "senders" else "senders"


def _key(placed: Placed, at: tuple[int, ...]) -> tuple[int, ...]:
    partial = placed.partial_dims()
    return tuple(i if dim in partial else 0 for dim, i in enumerate(at))


def placements_of(placed: Placed) -> Sequence[Any]:
    return placed.layout().placements


def make_case(seed: int, ranks: Sequence[int], most: int = 4) -> Case:
    """Sides of up to `most` of these ranks. One in five may share ranks."""
    dice = random.Random(seed)
    count = dice.randint(1, most)
    senders = sorted(dice.sample(ranks, count))
    rest = ranks if dice.random() < 0.2 else [rank for rank in ranks if rank not in senders]
    receivers = sorted(dice.sample(rest, dice.randint(1, min(most, len(rest)))))
    reduces = dice.random() < 0.25
    pairs, tensors = [], []
    for pair in range(dice.randint(1, 3)):
        dims = dice.randint(0, 3)
        op = dice.choice(OPS) if reduces else None
        source = _placed(dice, senders, dims, op)
        pairs.append((source, _placed(dice, receivers, dims, None)))
        for number in range(dice.randint(1, 3)):
            shape = tuple(dice.choice([0, 1, 2, 3, 5, 8, 13, 40]) for _ in range(dims))
            dtype, target_dtype = _types(dice, bool(source.partial_dims()))
            name = f"w{number}"
            tensors.append(CaseTensor(pair, name, shape, dtype, target_dtype))
    return Case(
        seed=seed,
        senders=tuple(senders),
        receivers=tuple(receivers),
        pairs=pairs,
        tensors=tensors,
        rounds=dice.randint(1, 3),
        queued=dice.random() < 0.5,
        bucket_size=dice.choice([None, None, 1, 5000]),
        verify=dice.choice(["off", "off", "sample", "full"]),
    )


def _placed(dice: random.Random, ranks: list[int], dims: int, op: str | None) -> Placed:
    mesh = _mesh(dice, len(ranks))
    placements: list[tuple[Any, ...]] = []
    for _ in mesh:
        kind = dice.choice(["R"] + ["S", "S", "SS"] * (dims > 0) + ["P"] * (op is not None))
        dim = dice.randint(-dims, dims - 1) if dims else 0
        made = {"R": ("R",), "S": ("S", dim), "SS": ("SS", dim, dice.randint(1, 3)), "P": ("P", op)}
        placements.append(made[kind])
    return Placed(mesh, tuple(placements), tuple(ranks))


def _mesh(dice: random.Random, count: int) -> tuple[int, ...]:
    shapes = [(count,), (1, count), (count, 1)]
    shapes += [(a, count // a) for a in range(2, count) if count % a == 0]
    mesh = dice.choice(shapes)
    assert math.prod(mesh) == count
    return mesh


def _types(dice: random.Random, reduces: bool) -> tuple[torch.dtype, torch.dtype]:
    if reduces:
        return (dice.choice([torch.float32, torch.bfloat16, torch.int32, torch.float64]),
                dice.choice([torch.float32, torch.float64, torch.bfloat16]))  # fmt: skip
    if dice.random() < 0.4:
        dtype = dice.choice(CONVERTIBLE + COPY_ONLY)
        return dtype, dtype
    return dice.choice(CONVERTIBLE), dice.choice(CONVERTIBLE)


def place_for(case: Case, tensor: CaseTensor, side: str, rank: int) -> torch.Tensor:
    """Memory for a rank's part: in the pool, dense, permuted, or with gaps."""
    placed = case.placed(tensor, side)
    dtype = case.dtype(tensor, side)
    whole = torch.empty(tensor.shape, dtype=dtype)
    shape = placed.local(whole, placed.coordinates()[rank]).shape
    dice = random.Random(f"{case.seed} {side} {rank} {tensor.name} {tensor.pair}")
    if dice.random() < 0.4:
        return tensorbus.empty(shape, dtype)
    generator = torch.Generator().manual_seed(dice.randrange(1 << 30))
    return strided_place(shape, dtype, generator)[1]


def fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    if tensor.numel():
        bits(tensor).copy_(bits(values))
