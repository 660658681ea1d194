"""What a plain local tensor holds of a whole one: no mesh, no process group, no DTensor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from tensorbus import _core
from tensorbus._core import Partial, Shard, StridedShard
from tensorbus.dtensor import dtensor_types

# (name, rows of the whole) or (name, rows of the whole, heads).
Row: TypeAlias = tuple[str, int] | tuple[str, int, int]


@dataclass(frozen=True, eq=False)
class Part:
    """``tensor`` holds the box of a tensor of ``shape`` that begins at ``start``.

    A value of a state dict, on either side of a link; a list of them is several boxes of one
    tensor. ``tensor`` may be any view. Boxes that overlap, on one rank or on several, hold the same
    values there. With ``pad`` the box may reach beyond the end of the whole: what lies there is not
    sent, and is set to ``pad`` when the tensor is received.
    """

    tensor: Any = field(repr=False)
    shape: Sequence[int]
    start: Sequence[int]
    pad: float | None = field(default=None, kw_only=True)
    _local: tuple[int, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "start", tuple(map(int, self.start)))
        if isinstance(self.tensor, dtensor_types()):
            raise ValueError("a DTensor says itself what it holds; pass it without a Part")
        local = tuple(self.tensor.shape)
        object.__setattr__(self, "_local", local)
        if not len(local) == len(self.shape) == len(self.start):
            raise ValueError(
                f"a part of shape {local} that begins at {self.start} of a whole {self.shape}: "
                "they have different numbers of dimensions"
            )
        if min(self.start, default=0) < 0 or min(self.shape, default=0) < 0:
            raise ValueError(f"a part begins at {self.start} of a whole {self.shape}")
        ends = [begin + size for begin, size in zip(self.start, local, strict=True)]
        if self.pad is None and any(map(int.__gt__, ends, self.shape)):
            raise ValueError(
                f"a part of shape {local} that begins at {self.start} reaches beyond its whole "
                f"{self.shape}; if that is padding, say with what: pad=0"
            )

    def has_shape_of(self, tensor: Any) -> bool:
        return self._local == tuple(tensor.shape)

    def fill_padding(self) -> None:
        """Sets what lies beyond the whole."""
        if self.pad is None:
            return
        for dim, (size, begin) in enumerate(zip(self.shape, self.start, strict=True)):
            inside = max(0, size - begin)
            if inside < self.tensor.shape[dim]:
                self.tensor[(slice(None),) * dim + (slice(inside, None),)] = self.pad


@dataclass(frozen=True, eq=False)
class Sharded:
    """``tensor`` is what ``rank`` of a layout (``"2:S0"``, or a ``tensorbus.Layout``) holds.

    ``rank`` is the place in the layout, whatever the agent's is: of several ranks that say the same
    all have the same values. Without ``shape`` all shards are equally large. For a value of a state
    dict, as ``Part``, into which it is turned.
    """

    tensor: Any = field(repr=False)
    layout: _core.Layout | str
    rank: int
    shape: Sequence[int] | None = None
    _whole: Part | None = field(default=None, init=False, repr=False)

    def parts(self) -> list[Part]:
        """One, or with a StridedShard as many as it has pieces."""
        # Every call of a link asks. One part is the tensor itself, wherever it is by then; of
        # several parts each is a view, which `share_` would leave behind in the old memory.
        known = self._whole
        if known is not None and known.has_shape_of(self.tensor):
            return [known]
        parts = self._make_parts()
        object.__setattr__(self, "_whole", parts[0] if len(parts) == 1 else None)
        return parts

    def _make_parts(self) -> list[Part]:
        layout = _core.Layout.parse(self.layout) if isinstance(self.layout, str) else self.layout
        if any(isinstance(placement, Partial) for placement in layout.placements):
            raise ValueError(f"{layout!r} has a Partial placement; only a DTensor can have that")
        local = tuple(self.tensor.shape)
        shape = _even_whole(layout, local) if self.shape is None else tuple(map(int, self.shape))
        expected = layout.local_shape(shape, self.rank)
        if expected != local:
            raise ValueError(
                f"rank {self.rank} of {layout!r} holds {expected} of a whole {shape}, not {local}"
            )
        slices = layout.slices(shape, self.rank)
        pieces = [each if isinstance(each, tuple) else (each,) for each in slices]
        if all(len(each) == 1 for each in pieces):
            return [Part(self.tensor, shape, [each[0].start for each in pieces])]
        parts = []
        for chosen in itertools.product(*(_with_local(each) for each in pieces)):
            view = self.tensor[tuple(here for here, _ in chosen)]
            parts.append(Part(view, shape, [there.start for _, there in chosen]))
        return parts


def _with_local(pieces: Sequence[slice]) -> list[tuple[slice, slice]]:
    """Each with where it lies in the local tensor."""
    found, begin = [], 0
    for piece in pieces:
        end = begin + piece.stop - piece.start
        found.append((slice(begin, end), piece))
        begin = end
    return found


def _even_whole(layout: _core.Layout, local: Sequence[int]) -> tuple[int, ...]:
    shape = list(local)
    for size, placement in zip(layout.mesh_shape, layout.placements, strict=True):
        if isinstance(placement, Shard | StridedShard):
            if not -len(shape) <= placement.dim < len(shape):
                raise ValueError(f"{layout!r} shards a dimension that {tuple(local)} has not")
            shape[placement.dim] *= size
    return tuple(shape)


def parts_of(value: Any) -> list[Part] | None:
    """None for what is no part. ValueError for one that cannot be."""
    if isinstance(value, Part):
        return [value]
    if isinstance(value, Sharded):
        return value.parts()
    if isinstance(value, list | tuple) and value and isinstance(value[0], Part | Sharded):
        lists = [parts_of(each) for each in value]
        if any(each is None for each in lists):
            raise ValueError("a list holds parts and other things")
        return [part for parts in lists for part in parts or []]
    return None


def described_parts(value: Any) -> list[Part] | None:
    """Of tensors that say themselves what they hold, as torch's checkpoints ask them; else None.

    That is ``__create_write_items__`` with ``__get_tensor_shard__`` (``torch.distributed``), or
    ``global_shape``, ``global_offsets``, ``local_offsets`` and ``local_sizes``
    (``torch_checkpointing``). A DTensor is none of them: its layout says more.
    """
    if isinstance(value, dtensor_types()):
        return None
    if hasattr(value, "__create_write_items__") and hasattr(value, "__get_tensor_shard__"):
        return [
            Part(
                value.__get_tensor_shard__(item.index),
                item.tensor_data.size,
                item.tensor_data.chunk.offsets,
            )
            for item in value.__create_write_items__("", value)
        ]
    geometry: list[Any] = [getattr(value, name, None) for name in _GEOMETRY]
    if any(each is None for each in geometry):
        return None
    shape, starts, local_starts, sizes = geometry
    return [
        Part(_box(value, begin, size), shape, start)
        for start, begin, size in zip(starts, local_starts, sizes, strict=True)
    ]


_GEOMETRY = ("global_shape", "global_offsets", "local_offsets", "local_sizes")


def _box(tensor: Any, start: Sequence[int], sizes: Sequence[int]) -> Any:
    ends = map(int.__add__, map(int, start), map(int, sizes))
    return tensor[tuple(slice(int(begin), end) for begin, end in zip(start, ends, strict=True))]


def fused(
    state_dict: Mapping[str, Any],
    rules: Mapping[str, Sequence[Row]],
    *,
    rank: int,
    size: int,
) -> dict[str, Any]:
    """The state dict of tensor-parallel rank ``rank`` of ``size``, with Parts under the names of
    what its fused parameters hold.

    ``rules`` gives for a pattern of names, ``"*.qkv_proj.weight"``, what lies one after the other
    in the rows of such a parameter: ``("q_proj", rows)``, where ``rows`` are those of the whole, of
    which every rank has an equal share. ``("k_proj", rows, heads)`` says how many heads these rows
    are: fewer heads than ranks are held by several ranks each. The first part of the pattern
    without ``*`` is what the names replace. Whatever no pattern fits stays as it is.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size}")
    made: dict[str, Any] = {}
    for name, tensor in state_dict.items():
        pattern = next((each for each in rules if fnmatchcase(name, each)), None)
        if pattern is None:
            made[name] = tensor
        else:
            made.update(_split(name, tensor, pattern, rules[pattern], rank, size))
    return made


def _split(
    name: str, tensor: Any, pattern: str, rows: Sequence[Row], rank: int, size: int
) -> dict[str, Part]:
    place = next((each for each in pattern.split(".") if "*" not in each), None)
    words = name.split(".")
    if place is None or place not in words:
        raise ValueError(f'"{pattern}" does not say which part of "{name}" is to be replaced')
    at = len(words) - 1 - words[::-1].index(place)
    parts, begin = {}, 0
    for own, whole, *heads in rows:
        first, count = _share(whole, heads[0] if heads else size, rank, size, f'"{own}" of {name}')
        shape = (whole, *tensor.shape[1:])
        view = tensor[begin : begin + count]
        start = (first, *(0 for _ in shape[1:]))
        parts[".".join([*words[:at], own, *words[at + 1 :]])] = Part(view, shape, start)
        begin += count
    if begin != tensor.shape[0]:
        raise ValueError(
            f'"{name}" has {tensor.shape[0]} rows here and {begin} by its rule '
            f"{list(rows)} at rank {rank} of {size}; with fewer heads than ranks, give their number"
        )
    return parts


def _share(rows: int, heads: int, rank: int, size: int, what: str) -> tuple[int, int]:
    """The first row of a rank, and how many it has."""
    if heads < 1 or rows % heads or (heads % size and size % heads):
        raise ValueError(f"{what}: {rows} rows of {heads} heads cannot be shared by {size} ranks")
    count = rows // min(heads, size)
    return rank * min(heads, size) // size * count, count
