import itertools
from typing import Any

import layout_oracle as oracle
import pytest
import tensorbus
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import _utils as torch_utils
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

FEW = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[Any], list[int]]:
    shape = draw(oracle.tensor_shapes)
    mesh = draw(oracle.mesh_shapes())
    return mesh, draw(oracle.placements(len(mesh), len(shape), partial=True)), shape


def take(full: torch.Tensor, slices: tuple[slice | tuple[slice, ...], ...]) -> torch.Tensor:
    """The local tensor that `Layout.slices` means."""
    for dim, choice in enumerate(slices):
        parts = choice if isinstance(choice, tuple) else (choice,)
        full = torch.cat([full.narrow(dim, s.start, s.stop - s.start) for s in parts], dim)
    return full


def check_against_torch(mesh: list[int], placements: list[Any], shape: list[int]) -> None:
    layout = tensorbus.Layout(mesh, placements)
    full = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for rank in layout.ranks:
        expected = oracle.local_tensor(full, mesh, placements, rank)
        assert layout.local_shape(shape, rank) == tuple(expected.shape)
        assert torch.equal(take(full, layout.slices(shape, rank)), expected)
        local_shape, offset = torch_utils._compute_local_shape_and_global_offset(
            shape, mesh, oracle.coordinates(mesh, rank), placements
        )
        assert layout.local_shape(shape, rank) == local_shape
        if expected.numel() > 0:
            starts = [s[0] if isinstance(s, tuple) else s for s in layout.slices(shape, rank)]
            assert tuple(s.start for s in starts) == offset


@pytest.mark.proves("B4.1")
@given(cases())
@FEW
def test_every_rank_holds_what_torch_gives_it(case: tuple[list[int], list[Any], list[int]]) -> None:
    check_against_torch(*case)


@pytest.mark.long
@pytest.mark.proves("B4.1")
@pytest.mark.timeout(600)
@given(cases())
@MANY
def test_every_rank_holds_what_torch_gives_it_long(
    case: tuple[list[int], list[Any], list[int]],
) -> None:
    check_against_torch(*case)


@pytest.mark.proves("B4.1")
def test_small_strided_layouts_exhaustively() -> None:
    for ranks, split, length in itertools.product(range(1, 4), range(1, 5), range(12)):
        check_against_torch([ranks, 2], [_StridedShard(0, split_factor=split), Shard(0)], [length])


@pytest.mark.proves("B4.1")
def test_plain_slices_index_a_tensor() -> None:
    layout = tensorbus.Layout((2, 2), [tensorbus.Shard(-1), tensorbus.Shard(0)])
    full = torch.arange(35).reshape(7, 5)
    assert torch.equal(full[layout.slices(full.shape, 3)], full[4:, 3:])


@pytest.mark.proves("B4.5")
def test_worked_examples() -> None:
    shard = [tensorbus.Shard(0)]
    assert [tensorbus.Layout(2, shard).slices([7], r) for r in (0, 1)] == [
        (slice(0, 4),),
        (slice(4, 7),),
    ]
    assert [tensorbus.Layout(4, shard).local_shape([2], r) for r in range(4)] == [
        (1,),
        (1,),
        (0,),
        (0,),
    ]


def test_our_placements_and_torchs_make_equal_layouts() -> None:
    ours = [
        tensorbus.Replicate(),
        tensorbus.Shard(-1),
        tensorbus.StridedShard(0, split_factor=2),
        tensorbus.Partial("avg"),
    ]
    theirs = [Replicate(), Shard(-1), _StridedShard(0, split_factor=2), Partial("avg")]
    a = tensorbus.Layout((2, 1, 2, 2), ours)
    b = tensorbus.Layout(torch.Size((2, 1, 2, 2)), theirs)
    assert a == b
    assert hash(a) == hash(b)
    assert a.placements == ours
    assert a != tensorbus.Layout((2, 1, 2, 2), [tensorbus.Replicate()] * 4)
    assert a != "2x1x2x2"


def test_a_device_mesh_gives_shape_and_ranks() -> None:
    class DeviceMesh:  # the part of torch's that counts, which needs no process group
        mesh = torch.tensor([[4, 5], [6, 7]])

    layout = tensorbus.Layout(DeviceMesh(), [Shard(0), Replicate()])
    assert layout.mesh_shape == (2, 2)
    assert layout.ranks == [4, 5, 6, 7]
    assert layout == tensorbus.Layout.parse("2x2:S0,R@4-7")
    assert tensorbus.Layout(DeviceMesh(), [Shard(0), Replicate()], ranks=[3, 2, 1, 0]).ranks == [
        3,
        2,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tensorbus.Layout((2, 2), [tensorbus.Shard(0)]), "needs 2 placements"),
        (lambda: tensorbus.Layout((2,), [tensorbus.Shard(0)], ranks=[0]), "needs 2 ranks"),
        (lambda: tensorbus.Layout((2,), [tensorbus.Shard(0)], ranks=[4, 4]), "rank 4"),
        (lambda: tensorbus.Layout((0,), [tensorbus.Shard(0)]), "without ranks"),
        (lambda: tensorbus.Layout((2,), ["S0"]), "'S0' is not known"),
        (lambda: tensorbus.Partial("xor"), "xor"),
        (lambda: tensorbus.StridedShard(0, 0) and tensorbus.Layout.parse("2:SS0/0"), "split"),
        (lambda: tensorbus.Layout.parse("2:X"), "expected SHAPE:P"),
        (
            lambda: tensorbus.Layout(2, [tensorbus.Shard(1)]).local_shape([4], 0),
            "S1 shards a dimension that a tensor of 1 dimensions does not have",
        ),
        (lambda: tensorbus.Layout(2, [tensorbus.Shard(0)]).slices([4], 2), "rank 2 is not in"),
        (lambda: tensorbus.Layout(2, [tensorbus.Shard(0)]).slices([-4], 0), "negative"),
    ],
)
def test_bad_input_says_what_was_expected(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
