import collections
import json
import xml.etree.ElementTree
from collections.abc import Iterator
from typing import Any

import layout_oracle as oracle
import pytest
import tensorbus
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    shape = draw(oracle.tensor_shapes)
    sides = []
    for _ in range(2):
        mesh = draw(oracle.mesh_shapes())
        sides.append((mesh, draw(oracle.placements(len(mesh), len(shape)))))
    hosts = draw(st.none() | st.lists(st.sampled_from("abc"), min_size=16, max_size=16))
    return shape, *sides, hosts


def boxes(slices: tuple[slice | tuple[slice, ...], ...]) -> Iterator[tuple[slice, ...]]:
    if not slices:
        yield ()
        return
    first, *rest = slices
    for part in first if isinstance(first, tuple) else (first,):
        for others in boxes(tuple(rest)):
            yield (part, *others)


def check_against_torch(
    shape: list[int],
    source: tuple[list[int], list[Any]],
    target: tuple[list[int], list[Any]],
    hosts: list[str] | None,
) -> None:
    host_of = None if hosts is None else dict(enumerate(hosts))
    source_layout, target_layout = tensorbus.Layout(*source), tensorbus.Layout(*target)
    plan = tensorbus.plan(source_layout, target_layout, shape, hosts=host_of)
    full = torch.arange(torch.Size(shape).numel()).reshape(shape)
    served = collections.Counter[int]()
    for rank in target_layout.ranks:
        expected = oracle.local_tensor(full, *target, rank)
        got = torch.full_like(expected, -1)
        for piece in plan.pieces(rank):
            (source_rank,) = piece.sources
            served[source_rank] += 1
            held = oracle.local_tensor(full, *source, source_rank)
            for to, frm in zip(boxes(piece.target_slices), boxes(piece.source_slices), strict=True):
                assert bool((got[to] == -1).all())
                got[to] = held[frm]
        assert torch.equal(got, expected)
    for rank in source_layout.ranks:
        assert len(plan.serves(rank)) == served[rank]


@pytest.mark.proves("B4.1")
@given(cases())
@FEW
def test_pieces_give_each_target_what_torch_would(case: tuple[Any, ...]) -> None:
    check_against_torch(*case)


@pytest.mark.long
@pytest.mark.proves("B4.1")
@pytest.mark.timeout(600)
@given(cases())
@MANY
def test_pieces_give_each_target_what_torch_would_long(case: tuple[Any, ...]) -> None:
    check_against_torch(*case)


@pytest.mark.proves("B4.5")
def test_worked_examples() -> None:
    two_to_three = tensorbus.plan("2:S0", "3:S0", [6])
    found = [
        (piece.target, piece.sources, piece.source_slices, piece.target_slices)
        for rank in range(3)
        for piece in two_to_three.pieces(rank)
    ]
    assert found == [
        (0, [0], (slice(0, 2),), (slice(0, 2),)),
        (1, [0], (slice(2, 3),), (slice(0, 1),)),
        (1, [1], (slice(0, 1),), (slice(1, 2),)),
        (2, [1], (slice(1, 3),), (slice(0, 2),)),
    ]
    halves = tensorbus.plan("2x2:R,S0", "2:R", [8])
    serving = {piece.sources[0] for rank in (0, 1) for piece in halves.pieces(rank)}
    assert serving == {0, 1, 2, 3}
    assert all(len(halves.pieces(rank)) == 2 for rank in (0, 1))


@pytest.mark.proves("B4.4")
def test_replicas_on_the_readers_host_come_first_and_share() -> None:
    # Four replicas, two on each host; three readers on one host, one on a third.
    hosts = ({0: "a", 1: "b", 2: "a", 3: "b"}, {0: "a", 1: "a", 2: "c", 3: "a"})
    plan = tensorbus.plan("4:R", "4:R", [10], hosts=hosts)
    chosen = [plan.pieces(rank)[0].sources for rank in range(4)]
    assert chosen == [[0], [2], [0], [0]]


@pytest.mark.proves("B4.4")
@pytest.mark.parametrize("readers", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
def test_no_replica_serves_more_than_its_share_plus_one(readers: int, replicas: int) -> None:
    for target in (f"{readers}:R", f"{readers}:S0"):
        plan = tensorbus.plan(f"{replicas}x2:R,S0", target, [64])
        for half in (0, 1):
            counts = [len(plan.serves(2 * replica + half)) for replica in range(replicas)]
            assert max(counts) <= sum(counts) // replicas + 1


@pytest.mark.proves("B4.2")
def test_a_partial_source_gives_groups_to_fold() -> None:
    (piece,) = tensorbus.plan("2x3:P,P.avg", "1:R", [4]).pieces(0)
    assert piece.sources == [0, 3, 1, 4, 2, 5]
    assert piece.folds == [("sum", 2), ("avg", 3)]


def test_types_are_taken_from_names_torch_and_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    for dtype in ("bf16", "bfloat16", torch.bfloat16):
        assert tensorbus.plan("1:R", "1:R", [1], dtype).dtype == "bfloat16"
    for dtype in (numpy.float16, numpy.dtype("float16"), "torch.float16"):
        assert tensorbus.plan("1:R", "1:R", [1], dtype).dtype == "float16"


@pytest.mark.proves("B4.3")
def test_the_narrower_type_crosses_the_wire() -> None:
    plan = tensorbus.plan("1:R", "2:S0", [8], "float32", target_dtype="bf16")
    assert plan.wire_dtype == "bfloat16"
    assert plan.bytes_between() == {(0, 0): 8, (0, 1): 8}
    assert tensorbus.plan("2:P", "1:R", [8], "f32", target_dtype="bf16").wire_dtype == "float32"


def test_reports_agree() -> None:
    plan = tensorbus.plan("4x2:S0,S1", "8:S1", [64, 64], "bf16")
    report = json.loads(plan.to_json(link=10))
    between = {(e["source"], e["target"]): e["bytes"] for e in report["bytes_between"]}
    assert between == plan.bytes_between()
    assert report["moved_bytes"] == sum(between.values()) == 64 * 64 * 2
    assert len(report["tensors"][0]["pieces"]) == report["pieces"] == 32
    assert report["seconds"] == pytest.approx(64 * 64 * 2 / 8 / 10e9)
    assert "32 pieces" in plan.summary()
    assert "GB/s" in plan.summary(link=25)
    svg = xml.etree.ElementTree.fromstring(plan.to_svg())
    bands = svg.findall("{http://www.w3.org/2000/svg}path")
    assert len(bands) == len(between)


@pytest.mark.parametrize("source", ["300:S0", "2:SS0/9", "2x2:P,S0", "1:R"])
@pytest.mark.parametrize("shape", [[], [0, 4], [97], [5, 6, 7]])
def test_every_plan_can_be_drawn(source: str, shape: list[int]) -> None:
    if not shape:
        source = "3:R"
    svg = tensorbus.plan(source, "5:R", shape).to_svg()
    assert xml.etree.ElementTree.fromstring(svg).tag.endswith("svg")


@pytest.mark.proves("B4.2", "B4.3")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("2:S0", "2:P", [4]), "the target has a Partial"),
        (("2:P", "2:P", [4]), "both sides have a Partial"),
        (("2:S1", "2:S0", [4]), "S1 shards a dimension"),
        (("2:S0", "2:S0", [-4]), "negative"),
        (("2:S0", "2:S0", [2**40, 2**40]), "63 bits"),
        (("2:P.avg", "2:R", [4], "int32"), "avg of int32"),
        (("2:P", "2:R", [4], "bool"), "sum of bool"),
        (("2:R", "2:R", [4], "float31"), "float31"),
        (("2:R", "2:R", [4], "f32", {0: "a"}), "rank 1 of the source"),
    ],
)
def test_bad_input_says_what_was_expected(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tensorbus.plan(*arguments)


@pytest.mark.proves("B4.3")
def test_types_that_do_not_convert_are_refused() -> None:
    with pytest.raises(ValueError, match="complex64 does not convert to float32"):
        tensorbus.plan("1:R", "1:R", [4], "complex64", target_dtype="float32")
    assert tensorbus.plan("1:R", "1:R", [4], "complex64").wire_dtype == "complex64"


def test_two_to_the_forty_elements() -> None:
    plan = tensorbus.plan("4:S0", "4:S1", [2**20, 2**20])
    assert sum(piece.elements for piece in plan.pieces(3)) == 2**38
