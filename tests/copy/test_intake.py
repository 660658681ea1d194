"""What the core sees of Python's tensors."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from tensorbus._core import Tensors

TORCH_TYPES = [
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz",
    "float8_e8m0fnu float4_e2m1fn_x2 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool",
    "complex32 complex64 complex128",
]


def view_of(tensor):
    return Tensors([tensor])[0]


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("name", " ".join(TORCH_TYPES).split())
def test_every_torch_type_comes_in_under_its_name(name):
    dtype = getattr(torch, name)
    tensor = torch.zeros(6 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(2, 3)
    assert view_of(tensor) == (tensor.data_ptr(), name, (2, 3), (3, 1), False)


def test_views_keep_their_strides():
    base = torch.zeros(4, 6)
    for tensor in (base.t(), base[1:, ::2], base[:, 2], base[0, 0], base[:1].expand(5, 6)):
        data, _, shape, strides, _ = view_of(tensor)
        assert (data, shape, strides) == (
            tensor.data_ptr(),
            tuple(tensor.shape),
            tuple(tensor.stride()),
        )


def test_parameters_and_tensors_that_require_gradients_are_tensors():
    parameter = torch.nn.Parameter(torch.zeros(3))
    assert view_of(parameter)[0] == parameter.data_ptr()
    assert view_of(torch.zeros(3, requires_grad=True))[2] == (3,)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
def test_empty_tensors_need_no_memory(shape):
    assert view_of(torch.empty(shape))[2] == shape


def test_numpy_arrays_come_in_with_their_strides():
    array = np.zeros((4, 6), dtype=np.int16)[:, ::-2]
    assert view_of(array) == (array.ctypes.data, "int16", (4, 3), (6, -2), False)
    array.flags.writeable = False
    assert view_of(array)[4]


def test_tensors_of_several_kinds_share_a_list():
    tensors = Tensors([torch.zeros(1), np.zeros(2), torch.nn.Parameter(torch.zeros(3))])
    assert [tensors[i][2] for i in range(len(tensors))] == [(1,), (2,), (3,)]


class OldProducer:
    """__dlpack__ as it was before version 1: no arguments."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()


class Copier:
    """A producer that hands out copies: what is written to them is lost."""

    def __dlpack__(self, max_version=None):
        return np.zeros(3).__dlpack__(max_version=max_version, copy=True)


def test_older_producers_are_understood():
    array = np.zeros((2, 3), dtype=np.float32)
    assert view_of(OldProducer(array)) == (array.ctypes.data, "float32", (2, 3), (3, 1), False)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (3, "is no tensor but a int"),
        ("text", "is no tensor but a str"),
        (None, "is no tensor but a NoneType"),
        (torch.empty(2, device="meta"), "meta"),
        (np.array(["text"]), "cannot be read"),
        (torch.zeros(2, dtype=torch.complex64).conj(), "is_conj"),
        (torch.zeros(2, dtype=torch.complex64).conj().imag, "is_neg"),
        (Copier(), "copies"),
    ],
    ids=["int", "str", "None", "meta", "strings", "conjugated", "negated", "copied"],
)
def test_what_cannot_be_moved_is_refused_by_its_position(what, words):
    with pytest.raises(ValueError, match=f"tensor 1 .*{words}"):
        Tensors([torch.zeros(1), what])


def test_what_has_a_name_is_refused_by_it():
    with pytest.raises(ValueError, match='tensor "b" is no tensor but a int'):
        Tensors([torch.zeros(1), 3], ["a", "b"])


def test_messages_of_torch_lose_their_stack():
    with pytest.raises(ValueError, match="meta") as caught:
        Tensors([torch.empty(2, device="meta")])
    assert "\n" not in str(caught.value)


def test_the_package_needs_no_torch():
    script = "import sys, tensorbus; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)
