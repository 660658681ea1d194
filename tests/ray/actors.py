"""Actors that tests of the transport use. Imported by name in the workers."""

from __future__ import annotations

import os
import time
import zlib
from typing import Any

import numpy as np
import ray
import tensorbus
import tensorbus.ray
import torch

tensorbus.ray.register()  # the decorators look for it

NAMES = {"torch": torch, "tensorbus": tensorbus, "np": np}


class Base:
    """What does not depend on the transport."""

    def __init__(self) -> None:
        self.kept: Any = None

    def pid(self) -> int:
        return os.getpid()

    def sums(self, value: Any) -> list[float]:
        return [float(np.asarray(tensor, dtype=np.float64).sum()) for tensor in flat(value)]

    def describe(self, value: Any) -> Any:
        return describe(value)

    def keep(self, value: Any) -> None:
        self.kept = value

    def kept_sums(self) -> list[float]:
        return self.sums(self.kept)

    def drop(self) -> None:
        self.kept = None

    def overwrite(self, number: float) -> None:
        for tensor in flat(self.kept):
            tensor[...] = number

    def put(self, what: str, transport: str = "TENSORBUS") -> list[Any]:
        """In a list, so that the ref itself comes back."""
        self.kept = eval(what, NAMES)
        return [ray.put(self.kept, _tensor_transport=transport)]

    def put_frozen(self, what: str) -> list[Any]:
        return [tensorbus.ray.put_frozen(eval(what, NAMES))]

    def get(self, refs: list[Any], timeout: float | None = None) -> Any:
        return describe(ray.get(refs[0], timeout=timeout))

    def get_all(self, refs: list[Any]) -> list[float]:
        return self.sums(ray.get(refs))

    def get_into(self, refs: list[Any], what: str) -> tuple[bool, Any]:
        """Whether the targets themselves came back, and what they hold."""
        targets = eval(what, NAMES)
        ray.experimental.set_target_for_ref(refs[0], targets)
        received = flat(ray.get(refs[0]))
        same = all(a is b for a, b in zip(received, targets, strict=True))
        return same, describe(targets)

    def timed_get(self, refs: list[Any], timeout: float) -> tuple[str, float]:
        started = time.monotonic()
        try:
            ray.get(refs[0], timeout=timeout)
            outcome = "well"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        return outcome, time.monotonic() - started

    def stats(self) -> dict[str, Any]:
        return tensorbus.ray.stats()

    def agent_rank(self) -> int:
        return tensorbus.ray.client().agent_rank

    def join_bus(self, side: str, other: str, values: list[float]) -> None:
        """With one tensor, which the other side has as it is."""
        client = tensorbus.ray.client()
        client.init_pair("pair", side, other, 1, (1,), [tensorbus.Replicate()])
        self.shared = tensorbus.share_(torch.tensor(values))
        self.batch = client.register_tensors("batch", [(self.shared, "pair", "tensor")])

    def transfer(self, direction: str) -> list[float]:
        self.batch.transfer(direction, blocking=True)
        return self.shared.tolist()

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))


@ray.remote
class Worker(Base):
    """Makes tensors and takes them."""

    @ray.method(tensor_transport="TENSORBUS")
    def make(self, what: str) -> Any:
        """An expression; what it gives is also kept."""
        self.kept = eval(what, NAMES)
        return self.kept

    @ray.method(tensor_transport="TENSORBUS")
    def echo(self, value: Any) -> Any:
        return value


@ray.remote(enable_tensor_transport=True)
class Plain(Base):
    """No method of it names a transport."""


def flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor | np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, list) else []


def describe(value: Any) -> Any:
    """Types, shapes and values, in the structure of the value."""
    if isinstance(value, dict):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value).__name__, str(value.dtype), tuple(value.shape), digest(value)
    return value


def digest(tensor: Any) -> int:
    """Of its bytes, whatever its type."""
    if isinstance(tensor, np.ndarray):
        return zlib.crc32(np.ascontiguousarray(tensor))
    data = tensor.detach().contiguous().flatten()
    return zlib.crc32(data.view(torch.uint8).numpy()) if data.numel() else 0
