"""Random state dicts of a link, each made from a seed in every process that takes part in it.

A tensor is held in one way by each side: as a plain tensor by some ranks, in parts, as the shard of
a layout, or as a DTensor. Versions are sent and received, or published and pulled.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorbus
import torch
from cases import OPS, fill, other
from layouts import random_bits, strided_place
from links import dtensor
from tensorbus import Link, Part, Sharded
from torch_oracle import CONVERTIBLE, COPY_ONLY, Placed, bits, cast, reduce, same_bits

Box = tuple[tuple[int, int], ...]  # begin and end in each dimension

REDUCED = [torch.float32, torch.bfloat16, torch.int32, torch.float64]
FLOATING = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
PADDED = [*FLOATING, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
TIMEOUT = 40.0


@dataclass(frozen=True)
class Holding:
    """How a side holds a tensor."""

    kind: Literal["plain", "parts", "sharded", "dtensor"]
    boxes: dict[int, list[Box]]  # by rank, of plain tensors and parts
    pad: int | None = None
    # By place in the side. Of shards there may be fewer places than ranks: replicas say the same.
    placed: Placed | None = None


@dataclass(frozen=True)
class LinkTensor:
    name: str
    shape: tuple[int, ...]
    dtypes: dict[str, torch.dtype]  # by side
    holdings: dict[str, Holding]  # those of the receivers are missing if none of them takes it


@dataclass(frozen=True)
class LinkCase:
    seed: int
    sides: dict[str, tuple[int, ...]]
    tensors: list[LinkTensor]
    versions: int
    verify: str
    subset: bool
    shelf: bool
    keep: int
    dtype: torch.dtype | None  # of the shelf
    together: bool
    withdraws: bool

    def ranks(self, side: str) -> tuple[int, ...]:
        return self.sides[side]

    def place(self, holding: Holding, side: str, rank: int) -> tuple[int, ...]:
        """Of a rank in the mesh."""
        assert holding.placed is not None
        coordinates = holding.placed.coordinates()
        return coordinates[self.ranks(side).index(rank) % len(coordinates)]

    def wholes(self, tensor: LinkTensor, version: int) -> dict[tuple[int, ...], torch.Tensor]:
        """What the senders hold of a version; by the place in the Partial dimensions, if any."""
        number = self.tensors.index(tensor)
        generator = torch.Generator().manual_seed(self.seed * 1000 + number * 50 + version)
        dtype, placed = tensor.dtypes["senders"], tensor.holdings["senders"].placed
        if placed is None or not placed.partial_dims():
            return {(): random_bits(tensor.shape, dtype, generator)}
        keys = sorted({partial_place(placed, at) for at in placed.coordinates().values()})
        return {
            key: cast(torch.randint(0, 5, tensor.shape, generator=generator), dtype) for key in keys
        }

    def held(self, tensor: LinkTensor, rank: int, version: int) -> list[torch.Tensor]:
        wholes = self.wholes(tensor, version)
        holding = tensor.holdings["senders"]
        if () in wholes:
            return self.locals_of(tensor, "senders", rank, wholes[()])
        assert holding.placed is not None
        key = partial_place(holding.placed, self.place(holding, "senders", rank))
        return self.locals_of(tensor, "senders", rank, wholes[key])

    def expected(self, tensor: LinkTensor, rank: int, version: int) -> list[torch.Tensor]:
        """What torch holds at a rank that receives."""
        wholes = self.wholes(tensor, version)
        dtype, source = tensor.dtypes["receivers"], tensor.holdings["senders"].placed
        if () not in wholes:
            assert source is not None
            whole = reduce(source, wholes, dtype)
        else:
            whole = cast(self.shelved(wholes[()]), dtype)
        return self.locals_of(tensor, "receivers", rank, whole)

    def shelved(self, whole: torch.Tensor) -> torch.Tensor:
        narrows = (
            self.dtype is not None
            and whole.dtype.is_floating_point
            and whole.dtype.itemsize > self.dtype.itemsize
        )
        return cast(whole, self.dtype) if narrows else whole

    def locals_of(
        self, tensor: LinkTensor, side: str, rank: int, whole: torch.Tensor
    ) -> list[torch.Tensor]:
        holding = tensor.holdings[side]
        if holding.placed is not None:
            return [holding.placed.local(whole, self.place(holding, side, rank))]
        return [cut(whole, box, holding.pad) for box in holding.boxes[rank]]


def partial_place(placed: Placed, at: tuple[int, ...]) -> tuple[int, ...]:
    partial = placed.partial_dims()
    return tuple(i if dim in partial else 0 for dim, i in enumerate(at))


def cut(whole: torch.Tensor, box: Box, pad: int | None) -> torch.Tensor:
    inside = bits(whole)[tuple(slice(*ends) for ends in box)]
    if pad is None:
        return inside.contiguous().view(whole.dtype)
    padded = torch.full([end - begin for begin, end in box], pad, dtype=whole.dtype)
    bits(padded)[tuple(slice(size) for size in inside.shape)] = inside
    return padded


# --- what seeds make -------------------------------------------------------------------------


def make_link_case(seed: int, ranks: Sequence[int], most: int = 4) -> LinkCase:
    dice = random.Random(f"link {seed}")
    senders = sorted(dice.sample(ranks, dice.randint(1, most)))
    rest = [rank for rank in ranks if rank not in senders]
    sides = {
        "senders": tuple(senders),
        "receivers": tuple(sorted(dice.sample(rest, dice.randint(1, most)))),
    }
    subset = dice.random() < 0.3
    shelf = dice.random() < 0.6
    tensors = [_make_tensor(dice, f"w{number}", sides) for number in range(dice.randint(1, 5))]
    for tensor in tensors:
        if subset and dice.random() < 0.4:
            del tensor.holdings["receivers"]
    # So that no rank has nothing, whatever else it holds.
    mark = {side: Holding("plain", {rank: [((0, 1),)] for rank in own})
            for side, own in sides.items()}  # fmt: skip
    tensors.append(LinkTensor("mark", (1,), dict.fromkeys(sides, torch.int64), mark))
    return LinkCase(
        seed=seed,
        sides=sides,
        tensors=tensors,
        versions=dice.randint(2, 4),
        verify="off" if shelf else dice.choice(["off", "off", "sample", "full"]),
        subset=subset,
        shelf=shelf,
        keep=dice.randint(2, 3),
        dtype=dice.choice([None, torch.bfloat16, torch.float16]) if shelf else None,
        together=dice.random() < 0.7,
        withdraws=dice.random() < 0.5,
    )


def _make_tensor(dice: random.Random, name: str, sides: dict[str, tuple[int, ...]]) -> LinkTensor:
    dims = dice.randint(0, 3)
    shape = tuple(dice.choice([1, 2, 3, 5, 8, 13, 40]) for _ in range(dims))
    op = dice.choice(OPS) if dice.random() < 0.15 else None
    if op is not None:
        dtypes = [dice.choice(REDUCED), dice.choice(REDUCED[:2])]
    elif dice.random() < 0.3:
        dtypes = [dice.choice(CONVERTIBLE + COPY_ONLY)] * 2
    elif dice.random() < 0.5:
        dtypes = [dice.choice(FLOATING), dice.choice(FLOATING)]
    else:
        dtypes = [dice.choice(CONVERTIBLE), dice.choice(CONVERTIBLE)]
    holdings = {}
    for (side, own), dtype in zip(sides.items(), dtypes, strict=True):
        holdings[side] = _make_holding(dice, shape, own, dtype, op if side == "senders" else None)
    return LinkTensor(name, shape, dict(zip(sides, dtypes, strict=True)), holdings)


def _make_holding(
    dice: random.Random, shape: tuple[int, ...], ranks: Sequence[int], dtype: torch.dtype,
    op: str | None,
) -> Holding:  # fmt: skip
    kind = dice.choice(["plain", "parts", "sharded", "dtensor"]) if op is None else "dtensor"
    if kind == "plain":
        whole = tuple((0, size) for size in shape)
        holders = dice.sample(ranks, dice.randint(1, len(ranks)))
        return Holding("plain", {rank: [whole] if rank in holders else [] for rank in ranks})
    if kind == "parts":
        pad = dice.choice([None, 0, 3]) if dtype in PADDED else None
        return Holding("parts", _make_boxes(dice, shape, ranks, pad), pad)
    count = dice.randint(1, len(ranks)) if kind == "sharded" else len(ranks)
    mesh = dice.choice(
        [(count,), *[(n, count // n) for n in range(1, count + 1) if count % n == 0]]
    )
    placements = [_make_placement(dice, len(shape), op) for _ in mesh]
    if op is not None:
        placements[dice.randrange(len(mesh))] = ("P", op)
    return Holding(kind, {}, placed=Placed(mesh, tuple(placements), tuple(range(math.prod(mesh)))))


def _make_placement(dice: random.Random, dims: int, op: str | None) -> tuple[Any, ...]:
    kind = dice.choice(["R"] + ["S", "S", "SS"] * (dims > 0) + ["P"] * (op is not None))
    dim = dice.randrange(dims) if dims else 0
    made = {"R": ("R",), "S": ("S", dim), "SS": ("SS", dim, dice.randint(1, 3)), "P": ("P", op)}
    return made[kind]


def _make_boxes(
    dice: random.Random, shape: tuple[int, ...], ranks: Sequence[int], pad: int | None
) -> dict[int, list[Box]]:
    """Boxes that together hold everything: a grid, with a few that overlap it."""
    ends = [size + (dice.randint(0, 2) if pad is not None else 0) for size in shape]
    cuts = [sorted({0, end, *(dice.randint(0, size) for _ in range(2))})
            for size, end in zip(shape, ends, strict=True)]  # fmt: skip
    boxes: list[Box] = list(itertools.product(*(itertools.pairwise(dim) for dim in cuts)))
    for _ in range(dice.randint(0, 3)):
        corners = [sorted(dice.sample(range(size + 1), 2)) for size in shape]
        boxes.append(tuple((begin, end) for begin, end in corners))
    held: dict[int, list[Box]] = {rank: [] for rank in ranks}
    for box in boxes:
        for rank in dice.sample(ranks, dice.randint(1, min(2, len(ranks)))):
            held[rank].append(box)
    return held


# --- what a rank does ------------------------------------------------------------------------


class RankState:
    """What one rank holds: its tensors and the state dict that they make."""

    def __init__(self, case: LinkCase, side: str, rank: int) -> None:
        self._case, self._side, self._rank = case, side, rank
        self._dice = random.Random(f"{case.seed} {side} {rank}")
        self._places: dict[str, list[torch.Tensor]] = {}
        self.state_dict: dict[str, Any] = {}
        self._tensors = [tensor for tensor in case.tensors if side in tensor.holdings]
        for tensor in self._tensors:
            whole = random_bits(tensor.shape, tensor.dtypes[side], self._generator())
            places = [self._place_for(local) for local in case.locals_of(tensor, side, rank, whole)]
            if places:
                self._places[tensor.name] = places
                self.state_dict[tensor.name] = self._value(tensor, places)

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._dice.randrange(1 << 30))

    def _place_for(self, local: torch.Tensor) -> torch.Tensor:
        """In the pool, dense, permuted, or with gaps."""
        if self._dice.random() < 0.3:
            return tensorbus.empty(local.shape, local.dtype)
        return strided_place(local.shape, local.dtype, self._generator())[1]

    def _value(self, tensor: LinkTensor, places: list[torch.Tensor]) -> Any:
        holding = tensor.holdings[self._side]
        ranks = self._case.ranks(self._side)
        if holding.kind == "plain":
            return places[0]
        if holding.kind == "parts":
            parts = [
                Part(place, tensor.shape, [begin for begin, _ in box], pad=holding.pad)
                for place, box in zip(places, holding.boxes[self._rank], strict=True)
            ]
            return parts[0] if len(parts) == 1 else parts
        placed = holding.placed
        assert placed is not None
        at = ranks.index(self._rank)
        if holding.kind == "sharded":
            return Sharded(places[0], placed.layout(), at % len(placed.ranks), tensor.shape)
        mesh = torch.arange(len(ranks)).reshape(placed.mesh)
        return dtensor(places[0], tensor.shape, mesh, placed.placements, at)

    def load(self, version: int) -> None:
        for tensor in self._tensors:
            if tensor.name in self._places:
                values = self._case.held(tensor, self._rank, version)
                for place, value in zip(self._places[tensor.name], values, strict=True):
                    fill(place, value)

    def spoil(self) -> None:
        for places in self._places.values():
            for place in places:
                fill(place, random_bits(place.shape, place.dtype, self._generator()))

    def compare(self, version: int) -> None:
        for tensor in self._tensors:
            if tensor.name not in self._places:
                continue
            values = self._case.expected(tensor, self._rank, version)
            for place, value in zip(self._places[tensor.name], values, strict=True):
                what = f"seed {self._case.seed}: {tensor} at rank {self._rank}, version {version}"
                assert same_bits(place, value), what


def run_link(
    client: tensorbus.TensorBusClient, case: LinkCase, rank: int, side: str
) -> tuple[Link, list[int]]:
    """What a rank does, and the versions that it got. The link stays open: a sender that closes it
    ends it for all."""
    remote = None if case.shelf and side == "senders" else f"{other(side)} {case.seed}"
    link = client.link(
        f"{side} {case.seed}", remote, len(case.ranks(side)), verify=case.verify
    )  # fmt: skip
    state = RankState(case, side, rank)
    if side == "senders":
        for version in range(1, case.versions + 1):
            state.load(version)
            assert give(link, case, state) == version
            state.spoil()
        return link, []
    versions: list[int] = []
    while not versions or versions[-1] < case.versions:
        last = versions[-1] if versions else 0
        versions.append(take(link, case, state, last))
        assert versions[-1] > last
        state.compare(versions[-1])
    return link, versions


def give(link: Link, case: LinkCase, state: RankState) -> int:
    if not case.shelf:
        return link.send_state_dict("x", state.state_dict, timeout=TIMEOUT)
    return link.publish(
        "x", state.state_dict, keep=case.keep, dtype=case.dtype, timeout=TIMEOUT,
        **({"on_full": "withdraw", "patience": 0.01} if case.withdraws else {}),
    )  # fmt: skip


def take(link: Link, case: LinkCase, state: RankState, last: int) -> int:
    if not case.shelf:
        return link.recv_state_dict("x", state.state_dict, subset=case.subset, timeout=TIMEOUT)
    return link.pull(
        "x", state.state_dict, newer_than=last or None, together=case.together,
        subset=case.subset, timeout=TIMEOUT,
    )  # fmt: skip
