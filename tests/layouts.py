"""Hypothesis strategies for layouts, and tensors with any bits and any strides."""

import math
import random

import torch
from hypothesis import strategies as st
from torch_oracle import BITS, Placed, bits

MOST_RANKS = 16


@st.composite
def meshes(draw: st.DrawFn) -> tuple[int, ...]:
    mesh: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        mesh.append(draw(st.integers(1, MOST_RANKS // math.prod(mesh))))
    return tuple(mesh)


@st.composite
def placements(draw: st.DrawFn, dims: int, op: str | None) -> tuple:
    kinds = ["R"]
    if dims > 0:
        kinds += ["S", "S", "S", "SS"]
    if op is not None:
        kinds += ["P", "P"]
    kind = draw(st.sampled_from(kinds))
    if kind == "P":
        # Linear reductions are the ones that may be mixed.
        return ("P", draw(st.sampled_from(["sum", "avg"])) if op == "mixed" else op)
    if kind == "R":
        return ("R",)
    dim = draw(st.integers(-dims, dims - 1))
    return ("S", dim) if kind == "S" else ("SS", dim, draw(st.integers(1, 4)))


@st.composite
def placed(draw: st.DrawFn, dims: int, op: str | None = None) -> Placed:
    mesh = draw(meshes())
    count = math.prod(mesh)
    seed = draw(st.integers(0, 1000))  # one draw is much quicker than a permutation
    ranks = random.Random(seed).sample(range(MOST_RANKS + 4), count) if seed else range(count)
    each = tuple(draw(placements(dims, op)) for _ in mesh)
    return Placed(mesh, each, tuple(ranks))


SHAPES = st.lists(
    st.one_of(st.integers(0, 7), st.integers(1, 4), st.just(1), st.just(13)), max_size=5
).filter(lambda shape: math.prod(shape) <= 3000)


def random_bits(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Any bit pattern of the type, so NaNs, infinities and subnormals too."""
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator, dtype=torch.uint8).view(dtype)
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
    if count == 0:
        return torch.empty(tuple(shape), dtype=BITS[dtype.itemsize]).view(dtype)
    return raw.view(BITS[dtype.itemsize]).reshape(tuple(shape)).view(dtype)


def strided_place(shape, dtype: torch.dtype, generator: torch.Generator):
    """Memory for a tensor and the tensor in it: dense, permuted, or with gaps."""
    dims = len(shape)
    kind = int(torch.randint(0, 3, (), generator=generator))
    order = list(range(dims))
    steps = [1] * dims
    if kind > 0:
        order = torch.randperm(dims, generator=generator).tolist()
    if kind > 1:
        steps = [int(torch.randint(1, 4, (), generator=generator)) for _ in range(dims)]
    memory = random_bits([shape[dim] * steps[dim] for dim in order], dtype, generator)
    inverse = [order.index(dim) for dim in range(dims)]
    view = bits(memory).permute(inverse)[tuple(slice(None, None, step) for step in steps)]
    return memory, view.view(dtype)


def strided_copy(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    _, view = strided_place(tensor.shape, tensor.dtype, generator)
    bits(view).copy_(bits(tensor))
    return view
