"""Boxes of exposed tensors, with torch as the oracle."""

import numpy as np
import pytest
import tensorbus
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sources import Source
from tensorbus import Endpoint

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]


@pytest.fixture(scope="module")
def endpoints():
    with Endpoint(name="source") as source, Endpoint(name="reader") as reader:
        yield source, reader


@st.composite
def boxes(draw, shape: tuple[int, ...]):
    """Where one begins, and its shape; of no elements, too."""
    starts = [draw(st.integers(0, size)) for size in shape]
    sizes = [draw(st.integers(0, size - at)) for size, at in zip(shape, starts, strict=True)]
    return tuple(starts), tuple(sizes)


@st.composite
def cases(draw):
    """Tensors of any strides, and boxes of them."""
    tensors, parts = [], []
    for index in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(0, 7), max_size=4)))
        dtype = draw(st.sampled_from(DTYPES))
        tensor = (torch.arange(int(np.prod(shape, dtype=int))) % 100).to(dtype).reshape(shape)
        tensor = tensorbus.share_(tensor.clone()) if draw(st.booleans()) else tensor
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
        tensors.append(tensor)
        for _ in range(draw(st.integers(0, 3))):
            parts.append((index, *draw(boxes(tuple(tensor.shape)))))
    return tensors, draw(st.permutations(parts))


def cut(tensor: torch.Tensor, start: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    return tensor[tuple(slice(at, at + size) for at, size in zip(start, sizes, strict=True))]


@pytest.mark.proves("G3.2")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_boxes_are_what_torch_cuts(endpoints, case):
    tensors, parts = case
    source, reader = endpoints
    descriptor = source.expose(tensors)
    targets = [torch.full(sizes, 77, dtype=tensors[index].dtype) for index, _, sizes in parts]
    places = [(index, start) for index, start, _ in parts]
    assert reader.read(descriptor, targets, parts=places, timeout=30) == targets
    for target, (index, start, sizes) in zip(targets, parts, strict=True):
        assert torch.equal(target, cut(tensors[index], start, sizes))
    source.release(descriptor)


@pytest.mark.proves("G3.2")
@pytest.mark.parametrize(
    ("tensors", "path"),
    [
        ("[share_(torch.arange(6000.).reshape(60, 100))]", "mapped"),
        ("[torch.arange(6000.).reshape(60, 100)]", "process_vm_readv"),
    ],
)
def test_only_the_boxes_of_another_process_move(start_python, tensors, path):
    source = Source(start_python, tensors)
    with Endpoint(name="reader") as endpoint:
        frame = torch.zeros(4, 20, dtype=torch.float64)
        targets = [frame[::2, 5:10], np.zeros((1, 3), dtype=np.float32)]
        parts = [(0, (58, 7)), (0, (3, 97))]
        read = endpoint.start_read(source.descriptor, targets, parts=parts)
        read.wait(timeout=30)
        assert frame[::2, 5:10].tolist() == [[5807.0 + i for i in range(5)],
                                            [5907.0 + i for i in range(5)]]  # fmt: skip
        assert frame[1].sum() == 0
        assert targets[1].tolist() == [[397.0, 398.0, 399.0]]
        assert read.path == path
        assert endpoint.stats()["paths"][path]["bytes"] == (10 + 3) * 4


def test_frozen_tensors_can_be_read_in_part(endpoints):
    source, reader = endpoints
    frozen = source.expose([tensorbus.share_(torch.arange(100.0))], frozen=True)
    (part,) = reader.read(frozen, [torch.zeros(3)], parts=[(0, [40])], timeout=30)
    assert part.tolist() == [40.0, 41.0, 42.0]
    source.release(frozen)
    with pytest.raises(tensorbus.WithdrawnError):
        reader.read(frozen, [torch.zeros(3)], parts=[(0, [40])], timeout=30)


def test_bad_parts_are_value_errors(endpoints):
    source, reader = endpoints
    descriptor = source.expose([torch.zeros(3, 4), torch.zeros(())])

    def refused(parts, targets, message):
        with pytest.raises(ValueError, match=message):
            reader.read(descriptor, targets, parts=parts, timeout=30)

    refused([(0, (2, 0))], [torch.zeros(2, 4)], "leads outside of tensor 0")
    refused([(0, (-1, 0))], [torch.zeros(1, 1)], "leads outside of tensor 0")
    refused([(0, (0,))], [torch.zeros(1)], "leads outside of tensor 0")
    refused([(1, (0,))], [torch.zeros(1)], "leads outside of tensor 1")
    refused([(2, ())], [torch.zeros(())], "tensor 2, there are 2")
    refused([(-1, ())], [torch.zeros(())], "-1 is no position")
    refused([(0, (0, 0))], [], "1 parts, but 0 targets")
    refused([(0, (0, 0))], None, "give into=")
    many = 5000
    refused([(0, (0, 0))] * many, [torch.zeros(1, 1)] * many, "more than one read takes")
    assert reader.read(descriptor, [], parts=[]) == []
