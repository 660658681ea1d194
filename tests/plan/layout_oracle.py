"""torch's own placement functions as the oracle of layouts, on plain tensors without processes."""

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

MOST_RANKS = 16
PARTIAL_OPS = ("sum", "avg", "max", "min", "product")


def coordinates(mesh_shape: Sequence[int], position: int) -> list[int]:
    result = []
    for size in reversed(mesh_shape):
        result.append(position % size)
        position //= size
    return result[::-1]


def local_tensor(
    full: torch.Tensor, mesh_shape: Sequence[int], placements: Sequence[Any], position: int
) -> torch.Tensor:
    """What the rank at `position` of the mesh holds, by torch's own splitting."""
    local = full
    at = coordinates(mesh_shape, position)
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Shard | _StridedShard):
            parts, _ = placement._split_tensor(
                local, mesh_shape[mesh_dim], with_padding=False, contiguous=False
            )
            local = parts[at[mesh_dim]]
    return local


@st.composite
def mesh_shapes(draw: st.DrawFn) -> list[int]:
    shape: list[int] = []
    room = MOST_RANKS
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, max(1, min(room, 4))))
        shape.append(size)
        room //= size
    return shape


@st.composite
def placements(draw: st.DrawFn, mesh_dims: int, dims: int, partial: bool = False) -> list[Any]:
    op = draw(st.sampled_from(PARTIAL_OPS))
    kinds = ["replicate"] + ["shard", "shard", "strided"] * (dims > 0) + ["partial"] * partial
    result: list[Any] = []
    for _ in range(mesh_dims):
        kind = draw(st.sampled_from(kinds))
        if kind == "replicate":
            result.append(Replicate())
        elif kind == "shard":
            result.append(Shard(draw(st.integers(0, dims - 1))))
        elif kind == "strided":
            dim = draw(st.integers(0, dims - 1))
            result.append(_StridedShard(dim, split_factor=draw(st.integers(1, 5))))
        else:
            result.append(Partial(op))
    return result


tensor_shapes = st.lists(st.integers(0, 9), max_size=5).filter(
    lambda shape: torch.Size(shape).numel() <= 4000
)
