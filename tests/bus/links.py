"""State dicts of several ranks in one process: DTensors on meshes that need no process group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from buses import Bus
from tensorbus import Link
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

TORCH_PLACEMENTS = {"R": Replicate, "S": Shard, "P": Partial}


def links(bus: Bus, local: str, remote: str, ranks: Sequence[int], **options: Any) -> list[Link]:
    """A link for each of these agents' ranks, which are all that are called `local`."""
    return [bus.client(rank).link(local, remote, len(ranks), **options) for rank in ranks]


def registered(link: Link, name: str, *, send: bool) -> int:
    """The number of a link's registration of a name that it has sent or received."""
    number = link._core.registration(name, send)
    assert number != 0
    return number


def is_sending(link: Link, name: str) -> bool:
    """Whether a thread has its turn."""
    return link._core.is_busy(name, True)


def dtensor(
    local: torch.Tensor,
    shape: Sequence[int],
    mesh: Sequence[int] | torch.Tensor,
    placements: Sequence[tuple[Any, ...]],
    rank: int,
) -> DTensor:
    """What `rank` of this mesh of torch's ranks holds of a tensor of this shape."""
    made = [
        _StridedShard(rest[0], split_factor=rest[1])
        if kind == "SS"
        else TORCH_PLACEMENTS[kind](*rest)
        for kind, *rest in placements
    ]
    device_mesh = DeviceMesh("cpu", torch.as_tensor(mesh), _init_backend=False, _rank=rank)
    strides = list(itertools.accumulate([1, *reversed(shape[1:])], lambda a, b: a * max(b, 1)))
    return DTensor.from_local(
        local, device_mesh, made, run_check=False, shape=torch.Size(shape),
        stride=tuple(reversed(strides[: len(shape)])),
    )  # fmt: skip
