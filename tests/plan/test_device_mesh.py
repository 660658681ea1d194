"""Real DeviceMeshes and torch's own redistribution planner, in a process group that pretends."""

import itertools
from collections.abc import Iterator

import pytest
import tensorbus
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _redistribute
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def mesh() -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(8).reshape(2, 2, 2))


def test_a_device_mesh_gives_shape_and_ranks(mesh: DeviceMesh) -> None:
    layout = tensorbus.Layout(mesh, [Shard(0), Replicate(), Shard(1)])
    assert layout == tensorbus.Layout.parse("2x2x2:S0,R,S1")
    some = DeviceMesh("cpu", torch.tensor([[6, 2], [0, 4]]))
    assert tensorbus.Layout(some, [Shard(0), Replicate()]).ranks == [6, 2, 0, 4]


def spec(mesh: DeviceMesh, placements: tuple[object, ...]) -> DTensorSpec:
    meta = TensorMeta(torch.Size([8, 8]), (8, 1), torch.float32)
    return DTensorSpec(mesh, placements, tensor_meta=meta)


@pytest.mark.proves("B4.2")
def test_folds_follow_the_order_of_torchs_redistribute(mesh: DeviceMesh) -> None:
    choices = [Partial("sum"), Replicate(), Shard(0), Shard(1)]
    for placements in itertools.product(choices, repeat=3):
        reduced = [dim for dim, p in enumerate(placements) if isinstance(p, Partial)]
        if not reduced:
            continue
        target = spec(mesh, (Replicate(),) * 3)
        steps = _redistribute._gen_transform_infos_non_cached(spec(mesh, placements), target)
        order = [step.mesh_dim for step in steps if step.mesh_dim in reduced]

        (piece, *_) = tensorbus.plan(tensorbus.Layout(mesh, placements), "1:R", [8, 8]).pieces(0)
        # The first fold joins neighbours of `sources`, the next those 2 apart, and so on.
        strides = [4, 2, 1]
        for level, mesh_dim in enumerate(order):
            assert piece.sources[2**level] - piece.sources[0] == strides[mesh_dim]
        assert piece.folds == [("sum", 2)] * len(order)
