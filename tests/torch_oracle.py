"""What torch itself says a redistribution gives: its own sharding, casts and arithmetic."""

import itertools
from dataclasses import dataclass

import tensorbus
import torch
from torch.distributed.tensor.placement_types import Shard, _StridedShard

CONVERTIBLE = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]
COPY_ONLY = [
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]

# Same-sized types that torch can slice, concatenate and compare whatever the bits mean.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

# torch converts the last elements of a tensor by other code, which gives other NaNs: whole vectors
# only.
VECTOR = 256


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(BITS[tensor.dtype.itemsize])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit; complex128 is compared as pairs of 64 bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.numel() == 0:
        return True
    flat = [bits(t.contiguous().reshape(-1)) for t in (a, b)]
    if a.dtype.itemsize == 16:
        flat = [torch.view_as_real(t).reshape(-1).view(torch.int64) for t in flat]
    return torch.equal(*flat)


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """tensor.to(dtype) as whole vectors; to integers saturating, with NaN as 0."""
    if tensor.dtype == dtype:
        return tensor.clone()
    flat = tensor.contiguous().reshape(-1)
    padded = torch.zeros(-(-flat.numel() // VECTOR) * VECTOR, dtype=BITS[flat.dtype.itemsize])
    padded[: flat.numel()] = bits(flat)
    result = _cast_vectors(padded.view(tensor.dtype), dtype)
    return bits(result)[: flat.numel()].view(dtype).reshape(tensor.shape)


def _cast_vectors(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not flat.dtype.is_floating_point or dtype.is_floating_point or dtype == torch.bool:
        return flat.to(dtype)
    wide = flat.to(torch.float64)
    info = torch.iinfo(dtype)
    low = wide.trunc() < float(info.min)
    high = wide.trunc() >= 2.0**63 if dtype == torch.int64 else wide.trunc() > float(info.max)
    defined = ~(low | high | wide.isnan())
    result = torch.where(defined, wide, 0.0).to(torch.int64).to(dtype)
    result[low] = info.min
    result[high] = info.max
    return result


@dataclass(frozen=True)
class Placed:
    """A layout in a form that torch and tensorbus are both made from."""

    mesh: tuple[int, ...]
    # ("R",), ("S", dim), ("SS", dim, split factor) or ("P", op), one per mesh dimension
    placements: tuple[tuple, ...]
    ranks: tuple[int, ...]

    def layout(self) -> tensorbus.Layout:
        made = {
            "R": tensorbus.Replicate,
            "S": tensorbus.Shard,
            "SS": tensorbus.StridedShard,
            "P": tensorbus.Partial,
        }
        placements = [made[kind](*rest) for kind, *rest in self.placements]
        return tensorbus.Layout(self.mesh, placements, ranks=list(self.ranks))

    def coordinates(self) -> dict[int, tuple[int, ...]]:
        return dict(zip(self.ranks, itertools.product(*(range(n) for n in self.mesh)), strict=True))

    def partial_dims(self) -> list[int]:
        """Mesh dimensions to reduce, in the order in which torch's redistribute does it."""
        dims = [dim for dim, (kind, *_) in enumerate(self.placements) if kind == "P"]
        shards = any(
            kind in ("S", "SS") and n > 1
            for (kind, *_), n in zip(self.placements, self.mesh, strict=True)
        )
        return dims[::-1] if shards else dims

    def local(self, tensor: torch.Tensor, coordinate: tuple[int, ...]) -> torch.Tensor:
        """What torch holds of a tensor at a coordinate of the mesh."""
        result = bits(tensor)
        for (kind, *rest), n, at in zip(self.placements, self.mesh, coordinate, strict=True):
            if kind == "S":
                placement = Shard(rest[0] % tensor.ndim)
            elif kind == "SS":
                placement = _StridedShard(rest[0] % tensor.ndim, split_factor=rest[1])
            else:
                continue
            shards, _ = placement._split_tensor(result, n, with_padding=False, contiguous=False)
            result = shards[at]
        return result.contiguous().view(tensor.dtype)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    if dtype == torch.float64:
        return torch.float64
    return torch.float32 if dtype.is_floating_point else torch.int64


def combine(op: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if op in ("sum", "avg"):
        return a + b
    if op == "product":
        return a * b
    better = b > a if op == "max" else b < a
    return torch.where(better | b.isnan(), b, a)


def reduce(
    source: Placed, tensors: dict[tuple[int, ...], torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """The tensor that Partial values make up: one mesh dimension at a time, a loop over each.

    `tensors` is the value of the whole tensor at every coordinate of the Partial dimensions, given
    as a coordinate of the mesh with 0 elsewhere.
    """
    own = next(iter(tensors.values())).dtype
    if len(tensors) == 1:
        return cast(next(iter(tensors.values())), dtype)
    values = {at: cast(tensor, accumulator(own)) for at, tensor in tensors.items()}
    for dim in source.partial_dims():
        op = source.placements[dim][1]
        reduced = {}
        for at in [at for at in values if at[dim] == 0]:
            result = values[at]
            for i in range(1, source.mesh[dim]):
                result = combine(op, result, values[(*at[:dim], i, *at[dim + 1 :])])
            reduced[at] = result / source.mesh[dim] if op == "avg" else result
        values = reduced
    return cast(next(iter(values.values())), dtype)
