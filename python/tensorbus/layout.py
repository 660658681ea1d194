"""Layouts and plans, from our own objects or from torch's.

This module knows torch's DeviceMesh and placements without importing torch: whoever passes one has
imported it.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tensorbus import _core
from tensorbus._core import Partial, Plan, Replicate, Shard, StridedShard

Placement: TypeAlias = Replicate | Shard | StridedShard | Partial
Hosts: TypeAlias = Mapping[int, str]


class Layout(_core.Layout):
    """How a tensor is spread over ranks: a mesh and one placement for each of its dimensions.

    ``mesh`` is a shape or a torch ``DeviceMesh``; ``placements`` are ours or torch's. ``ranks``
    fill the mesh in row-major order; without them they are those of the ``DeviceMesh``, or
    0, 1, ...
    """

    def __init__(
        self, mesh: Any, placements: Sequence[Any], ranks: Sequence[int] | None = None
    ) -> None:
        shape, own_ranks = mesh_of(mesh)
        super().__init__(
            shape,
            [placement_of(placement) for placement in placements],
            own_ranks if ranks is None else [int(rank) for rank in ranks],
        )


def plan(
    source: _core.Layout | str,
    target: _core.Layout | str,
    shape: Sequence[int],
    dtype: Any = "float32",
    hosts: Hosts | tuple[Hosts, Hosts] | None = None,
    *,
    target_dtype: Any = None,
) -> Plan:
    """Who reads what from whom when a tensor goes from one layout to another.

    Layouts may be given in their text form (``"4x2:S0,S1"``), types by name or as torch's or
    numpy's. ``hosts`` says where ranks are: ``{rank: host}`` for both sides, or one for each.
    Replicas on a reader's own host are preferred.
    """
    source = _core.Layout.parse(source) if isinstance(source, str) else source
    target = _core.Layout.parse(target) if isinstance(target, str) else target
    source_hosts, target_hosts = hosts if isinstance(hosts, tuple) else (hosts, hosts)
    return _core.make_plan(
        source,
        target,
        list(shape),
        _dtype_name(dtype),
        _dtype_name(dtype if target_dtype is None else target_dtype),
        _host_list(source, source_hosts, "source"),
        _host_list(target, target_hosts, "target"),
    )


def mesh_of(mesh: Any) -> tuple[list[int], list[int] | None]:
    """Its shape, and its ranks if it says: whatever has ``.mesh.shape`` need not."""
    if isinstance(mesh, int):
        return [mesh], None
    ranks = getattr(mesh, "mesh", None)
    if ranks is None:
        return [int(size) for size in mesh], None
    shape = [int(size) for size in ranks.shape]
    says_ranks = shape and hasattr(ranks, "reshape")
    return shape, [int(rank) for rank in ranks.reshape(-1).tolist()] if says_ranks else None


def is_outside(mesh: Any) -> bool:
    """Whether this process has no place in a torch ``DeviceMesh``."""
    return _is_device_mesh(mesh) and mesh.get_coordinate() is None


def _is_device_mesh(mesh: Any) -> bool:
    torch_meshes = sys.modules.get("torch.distributed.device_mesh")
    return torch_meshes is not None and isinstance(mesh, torch_meshes.DeviceMesh)


def coordinate_of(mesh: Any) -> list[int] | None:
    """Where this process is in a torch ``DeviceMesh``; None for a mere shape."""
    if not _is_device_mesh(mesh):
        return None
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(f"this process has no place in {mesh}; only its members may use it")
    return [int(index) for index in coordinate]


def placement_of(placement: Any) -> Placement:
    """Ours, from ours or torch's."""
    if isinstance(placement, Replicate | Shard | StridedShard | Partial):
        return placement
    torch_types = sys.modules.get("torch.distributed.tensor.placement_types")
    if torch_types is not None:
        # Subclasses, torch's _MaskPartial for one, mean something else.
        kind = type(placement)
        if kind is torch_types.Replicate:
            return Replicate()
        if kind is torch_types._StridedShard:
            return StridedShard(placement.dim, int(placement.split_factor))
        if kind is torch_types.Shard:
            return Shard(placement.dim)
        if kind is torch_types.Partial:
            return Partial(placement.reduce_op)
    raise ValueError(
        f"placement {placement!r} is not known; expected Replicate, Shard, StridedShard or "
        "Partial, of tensorbus or of torch"
    )


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, type):
        return dtype.__name__  # numpy.float32
    return str(dtype)  # a name, torch.float32, numpy.dtype("float32")


def _host_list(layout: _core.Layout, hosts: Hosts | None, side: str) -> list[str]:
    if hosts is None:
        return []
    missing = [rank for rank in layout.ranks if rank not in hosts]
    if missing:
        raise ValueError(f"hosts: rank {missing[0]} of the {side} is missing")
    return [hosts[rank] for rank in layout.ranks]
