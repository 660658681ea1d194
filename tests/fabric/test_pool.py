"""Tensors in memory that others can map."""

import gc

import numpy as np
import pytest
import tensorbus
import torch
from processes import Start
from tensorbus import _core, empty, share_
from tensorbus.pool import use

TORCH_TYPES = """
    float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz
    float8_e8m0fnu float4_e2m1fn_x2 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool
    complex32 complex64 complex128
"""


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("name", TORCH_TYPES.split())
def test_every_torch_type_can_be_pooled(name):
    tensor = empty((2, 3), getattr(torch, name))
    assert tensor.dtype == getattr(torch, name)
    assert tuple(tensor.shape) == (2, 3)
    assert tensor.is_contiguous()
    assert _core.is_pooled(tensor)


def test_the_type_decides_whose_tensor_it_is():
    assert isinstance(empty(3, np.float32), np.ndarray)
    assert isinstance(empty(3, "float32"), torch.Tensor)  # torch is imported here
    array = empty((4,), np.dtype("int16"))
    array[:] = 7
    assert array.sum() == 28
    assert empty((), torch.int8).ndim == 0
    assert empty((3, 0), torch.int8).numel() == 0
    with pytest.raises(ValueError, match="nonsense"):
        empty(3, "nonsense")
    with pytest.raises(ValueError, match="negative"):
        empty(-1)


def test_memory_goes_back_with_its_last_holder():
    gc.collect()
    before = use()["lent"]
    tensor = empty(1_000_000, torch.int8)
    view = tensor[500_000:]
    array = tensor.numpy()
    assert use()["lent"] >= before + 1_000_000
    del tensor, view
    assert use()["lent"] >= before + 1_000_000
    del array
    gc.collect()
    assert use()["lent"] == before


def test_what_came_back_is_given_again():
    place = empty(3_000_000, torch.int8).data_ptr()
    reserved = use()["reserved"]
    assert empty(3_000_000, torch.int8).data_ptr() == place
    assert use()["reserved"] == reserved


def test_share_moves_a_tensor_in_place():
    tensor = torch.arange(6.0).reshape(2, 3)
    old_view = tensor[0]
    assert share_(tensor) is tensor
    assert _core.is_pooled(tensor)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    place = tensor.data_ptr()
    assert share_(tensor).data_ptr() == place
    tensor[0, 0] = 9
    assert old_view[0] == 0

    layer = torch.nn.Linear(3, 3)
    weight = layer.weight.detach().clone()
    share_(layer.weight)
    assert isinstance(layer.weight, torch.nn.Parameter)
    assert _core.is_pooled(layer.weight)
    assert torch.equal(layer.weight, weight)
    layer(torch.ones(3)).sum().backward()
    assert layer.weight.grad is not None


def test_share_copies_an_array():
    array = np.arange(4)
    shared = share_(array)
    assert shared is not array
    assert shared.tolist() == [0, 1, 2, 3]
    assert _core.is_pooled(shared)
    with pytest.raises((TypeError, ValueError), match="tensor"):
        share_("text")


def test_trim_gives_unused_memory_back():
    tensor = empty(80_000_000, torch.int8)
    reserved = use()["reserved"]
    del tensor
    assert use()["reserved"] == reserved
    tensorbus.pool.trim()
    assert use()["reserved"] <= reserved - 80_000_000


def test_too_much_memory_is_an_error():
    with pytest.raises(RuntimeError, match="memory"):
        empty(1 << 50, torch.int8)


def test_tensors_outlive_everything(start_python: Start):
    script = """
import atexit, torch, tensorbus
kept = tensorbus.empty(1000)
@atexit.register
def late():
    kept.fill_(3)
    print(kept.sum().item())
"""
    process = start_python(script)
    assert process.line() == "3000.0"
    assert process.wait() == 0, process.errors
