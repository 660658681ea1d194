"""Tensors in pooled memory that travel together."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from tensorbus import pool
from tensorbus.dtensor import dtensor_types

# What the pool gives at least, so that many small tensors are counted as what they take.
ALIGNMENT = 64
# Descriptors of more become long.
MOST_TENSORS = 1024


@dataclass
class Form:
    """What a tensor takes in a bucket: all senders cut the buckets by this alone."""

    name: str
    dtype: Any
    sizes: tuple[int, ...]
    nbytes: int

    @property
    def room(self) -> int:
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT


def form_of(name: Any, tensor: Any, dtype: Any) -> Form:
    """ValueError for what cannot be sent. ``dtype`` is for floating point."""
    import torch

    if not isinstance(name, str):
        raise ValueError(f"a tensor has the name {name!r:.100}, which is no text")
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f'"{name}" is no torch tensor but {type(tensor).__name__}')
    if isinstance(tensor, dtensor_types()):
        raise ValueError(f'"{name}" is a DTensor; a stream takes whole tensors: full_tensor()')
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise ValueError(f'"{name}" has no plain memory: {tensor.layout} on {tensor.device}')
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return Form(name, kind, tuple(tensor.shape), tensor.numel() * kind.itemsize)


@dataclass
class Bucket:
    """What a sender fills."""

    number: int
    room: int
    names: list[str] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)  # at its sender
    used: int = 0

    def fits(self, form: Form) -> bool:
        return self.used + form.room <= self.room and len(self.names) < MOST_TENSORS

    def count(self, form: Form) -> None:
        """A tensor of a bucket that is another sender's."""
        self.used += form.room
        self.names.append(form.name)

    def put(self, form: Form, tensor: Any) -> None:
        import torch

        self.count(form)
        place = pool.empty(form.sizes, form.dtype)
        with torch.no_grad():
            place.copy_(tensor)
        self.tensors.append(place)


def is_record(value: Any) -> bool:
    """Whether this describes a bucket; others may write to the store, too."""
    kinds = {"sender": int, "senders": int, "id": str, "last": bool, "names": list, "tensors": str}
    return isinstance(value, dict) and all(
        isinstance(value.get(key), kind) for key, kind in kinds.items()
    )


def to_text(descriptor: bytes) -> str:
    return base64.b64encode(descriptor).decode()


def from_text(text: str) -> bytes:
    return base64.b64decode(text)
