"""redistribute against torch's own functions, bit for bit."""

import itertools
import threading

import numpy as np
import pytest
import tensorbus
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import SHAPES, placed, random_bits, strided_copy, strided_place
from torch_oracle import CONVERTIBLE, COPY_ONLY, Placed, bits, reduce, same_bits

# complex32 is only copied here.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")

REDUCTIONS = ["sum", "avg", "max", "min", "product", "mixed"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    # Threads cut torch's loops, and every cut changes which code converts a NaN.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def equal_but_for_nan_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Which NaN an addition of two NaNs gives is the processor's choice."""
    if same_bits(a, b):
        return True
    if not a.dtype.is_floating_point:
        return False
    a_nan, b_nan = a.to(torch.float64).isnan(), b.to(torch.float64).isnan()
    if not torch.equal(a_nan, b_nan):
        return False
    return torch.equal(bits(a.contiguous())[~a_nan], bits(b.contiguous())[~b_nan])


def check(source: Placed, target: Placed, shape, dtype, target_dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    partial = source.partial_dims()
    wholes = {}
    for at in source.coordinates().values():
        key = tuple(i if dim in partial else 0 for dim, i in enumerate(at))
        if key not in wholes:
            wholes[key] = random_bits(shape, dtype, generator)
    sources = {}
    for rank, at in source.coordinates().items():
        key = tuple(i if dim in partial else 0 for dim, i in enumerate(at))
        sources[rank] = strided_copy(source.local(wholes[key], at), generator)
    before = {rank: tensor.clone() for rank, tensor in sources.items()}
    whole = reduce(source, wholes, target_dtype)

    memory, targets, expected = {}, {}, {}
    for rank, at in target.coordinates().items():
        local = target.local(whole, at)
        memory[rank], targets[rank] = strided_place(local.shape, target_dtype, generator)
        expected[rank] = local
    gaps = {rank: everything_beside(memory[rank], targets[rank]) for rank in memory}

    tensorbus.redistribute(source.layout(), sources, target.layout(), targets)

    same = equal_but_for_nan_bits if len(wholes) > 1 else same_bits
    for rank, tensor in targets.items():
        assert same(tensor, expected[rank]), f"target rank {rank}"
        assert same_bits(everything_beside(memory[rank], tensor), gaps[rank])
    for rank, tensor in sources.items():
        assert same_bits(tensor, before[rank]), f"source rank {rank} was changed"


def everything_beside(memory: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """The memory with the elements of the view set to 0."""
    flat = bits(memory).clone().reshape(-1)
    if flat.numel() > 0:
        flat.as_strided(view.shape, view.stride(), view.storage_offset()).zero_()
    return flat


PAIRS = st.one_of(
    st.tuples(st.sampled_from(CONVERTIBLE), st.sampled_from(CONVERTIBLE)),
    st.sampled_from(CONVERTIBLE + COPY_ONLY).map(lambda dtype: (dtype, dtype)),
)


@st.composite
def copies(draw: st.DrawFn):
    shape = draw(SHAPES)
    source, target = draw(placed(len(shape))), draw(placed(len(shape)))
    return source, target, shape, *draw(PAIRS), draw(st.integers(0, 2**31))


@st.composite
def reductions(draw: st.DrawFn):
    shape = draw(SHAPES)
    op = draw(st.sampled_from(REDUCTIONS))
    source, target = draw(placed(len(shape), op)), draw(placed(len(shape)))
    dtype, target_dtype = draw(
        st.tuples(st.sampled_from(CONVERTIBLE), st.sampled_from(CONVERTIBLE)).filter(
            lambda pair: is_defined(op, pair[0])
        )
    )
    return source, target, shape, dtype, target_dtype, draw(st.integers(0, 2**31))


def is_defined(op: str, dtype: torch.dtype) -> bool:
    if dtype == torch.bool:
        return op in ("max", "min")
    return dtype.is_floating_point or op not in ("avg", "mixed")


NO_DEADLINE = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.mark.proves("B4.1", "B4.3", "B5.6", "B5.7", "B5.8", "B5.9")
@pytest.mark.timeout(300)
@settings(max_examples=600, **NO_DEADLINE)
@given(copies())
def test_every_target_gets_what_torch_would_hold(case):
    check(*case)


@pytest.mark.proves("B4.2")
@pytest.mark.timeout(300)
@settings(max_examples=600, **NO_DEADLINE)
@given(reductions())
def test_partial_sources_are_reduced_as_a_loop_in_torch_does(case):
    check(*case)


@pytest.mark.long
@pytest.mark.timeout(900)
@settings(max_examples=10_000, **NO_DEADLINE)
@given(st.one_of(copies(), reductions()))
def test_many_more_of_both(case):
    check(*case)


@pytest.mark.proves("B4.3")
@pytest.mark.parametrize("dtype", CONVERTIBLE, ids=str)
@pytest.mark.parametrize("target_dtype", CONVERTIBLE, ids=str)
def test_every_pair_of_types_on_the_way(dtype, target_dtype):
    source = Placed((2,), (("S", 0),), (0, 1))
    target = Placed((3,), (("S", 1),), (0, 1, 2))
    check(source, target, (40, 50), dtype, target_dtype, seed=7)


@pytest.mark.proves("B5.5")
@pytest.mark.parametrize("target_dtype", [torch.float32, torch.float16])
def test_bfloat16_widens_by_value(target_dtype):
    values = torch.tensor([1.0, -2.5, 3e-5, 65504.0]).to(torch.bfloat16)
    result = torch.empty(4, dtype=target_dtype)
    whole = tensorbus.Layout((1,), [tensorbus.Replicate()])
    tensorbus.redistribute(whole, {0: values}, whole, {0: result})
    assert torch.equal(result, values.to(target_dtype))


@pytest.mark.proves("B5.10")
def test_many_hundred_shards_keep_their_order():
    source = Placed((400,), (("S", 0),), tuple(range(400)))
    target = Placed((500,), (("S", 0),), tuple(range(500)))
    check(source, target, (1100, 3), torch.int64, torch.int64, seed=1)


@pytest.mark.proves("B4.2", "B5.11")
@pytest.mark.parametrize("source", ["sum", None])
def test_a_partial_target_is_refused(source):
    two = tensorbus.Layout((2,), [tensorbus.Partial(source) if source else tensorbus.Shard(0)])
    partial = tensorbus.Layout((2,), [tensorbus.Partial("sum")])
    tensors = {rank: torch.zeros(4) for rank in (0, 1)}
    with pytest.raises(ValueError, match="Partial"):
        tensorbus.redistribute(two, tensors, partial, tensors)


@pytest.mark.proves("B4.2")
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        *itertools.product([torch.int8, torch.int64, torch.uint8], ["avg"]),
        *itertools.product([torch.bool], ["sum", "avg", "product"]),
        (torch.complex64, "sum"),
    ],
    ids=str,
)
def test_reductions_that_have_no_meaning_are_refused(dtype, op):
    source = tensorbus.Layout((2,), [tensorbus.Partial(op)])
    target = tensorbus.Layout((1,), [tensorbus.Replicate()])
    tensors = {rank: torch.zeros(4, dtype=dtype) for rank in (0, 1)}
    with pytest.raises(ValueError, match=str(dtype).removeprefix("torch.")):
        tensorbus.redistribute(source, tensors, target, {0: torch.zeros(4, dtype=dtype)})


@pytest.mark.proves("B4.2")
def test_integer_sums_wrap_on_the_final_cast():
    source = tensorbus.Layout((3,), [tensorbus.Partial("sum")])
    target = tensorbus.Layout((1,), [tensorbus.Replicate()])
    result = torch.zeros(2, dtype=torch.int8)
    tensors = {rank: torch.tensor([100, -100], dtype=torch.int8) for rank in range(3)}
    tensorbus.redistribute(source, tensors, target, {0: result})
    assert result.tolist() == [44, -44]


ROWS = tensorbus.Layout((2,), [tensorbus.Shard(0)])
COLUMNS = tensorbus.Layout((2,), [tensorbus.Shard(1)])


def rows(dtype=torch.float32):
    return {0: torch.zeros(3, 7, dtype=dtype), 1: torch.zeros(3, 7, dtype=dtype)}


def columns(dtype=torch.float32):
    return {0: torch.zeros(6, 4, dtype=dtype), 1: torch.zeros(6, 3, dtype=dtype)}


@pytest.mark.proves("B4.3")
@pytest.mark.parametrize(
    ("sources", "targets", "words"),
    [
        ({0: rows()[0]}, columns(), ["source", "rank 1", "missing"]),
        (rows() | {7: rows()[0]}, columns(), ["source", "3 tensors", "2 ranks"]),
        (rows(), columns() | {1: torch.zeros(6, 4)}, ["target", "rank 1", "(6, 4)", "(6, 3)"]),
        ({0: torch.zeros(2, 7), 1: torch.zeros(4, 7)}, columns(), ["source", "rank 0", "(3, 7)"]),
        (rows() | {1: torch.zeros(3, 7, 1)}, columns(), ["source", "rank 1", "3 dim", "2"]),
        (rows() | {1: rows(torch.float16)[1]}, columns(), ["source", "float16", "float32"]),
        (rows(), columns(torch.complex64), ["float32", "complex64"]),
        (rows(torch.uint16), columns(), ["uint16", "float32"]),
        (rows(), columns() | {0: "no tensor"}, ["target", "rank 0", "str"]),
        (rows(), columns() | {0: torch.zeros(6, 1).expand(6, 4)}, ["target", "rank 0", "expanded"]),
    ],
)
def test_what_does_not_fit_is_named(sources, targets, words):
    with pytest.raises(ValueError, match=r".") as caught:
        tensorbus.redistribute(ROWS, sources, COLUMNS, targets)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_read_only_target_is_refused():
    target = np.zeros((6, 7), dtype=np.float32)
    target.flags.writeable = False
    whole = tensorbus.Layout((1,), [tensorbus.Replicate()])
    with pytest.raises(ValueError, match="read-only"):
        tensorbus.redistribute(ROWS, rows(), whole, {0: target})


def test_numpy_and_torch_mix():
    source = {0: np.arange(21.0).reshape(3, 7), 1: np.arange(21.0, 42.0).reshape(3, 7)}
    targets = columns()
    tensorbus.redistribute(ROWS, source, COLUMNS, targets)
    assert torch.equal(torch.cat([targets[0], targets[1]], 1), torch.arange(42.0).reshape(6, 7))


def test_other_threads_run_meanwhile():
    size = 1 << 23
    whole = tensorbus.Layout((1,), [tensorbus.Replicate()])
    source, target = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float16)
    done = threading.Event()
    turns = 0

    def work():
        tensorbus.redistribute(whole, {0: source}, whole, {0: target})
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        turns += 1
    thread.join()
    # With the GIL held for the whole call this thread would count a handful before and after.
    assert turns > 100
