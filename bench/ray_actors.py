"""The two ends of the Ray benchmark. Imported by name in the workers."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import numpy as np
import ray
import tensorbus
import tensorbus.ray
import torch

tensorbus.ray.register()


@ray.remote
class Source:
    def private_place(self) -> tuple[int, int]:
        """(pid, address) of the first private tensor of the last put."""
        return os.getpid(), self.private.data_ptr()

    def put(self, kind: str, count: int, elements: int) -> list[Any]:
        """A ref to `count` tensors of float32, made as `kind` says."""
        if kind == "numpy":
            return [ray.put([np.ones(elements, dtype=np.float32) for _ in range(count)])]
        pooled = kind in ("pooled", "frozen")
        make = tensorbus.empty if pooled else torch.empty
        tensors = [make((elements,), dtype=torch.float32).fill_(1) for _ in range(count)]
        if kind == "private":
            self.private = tensors[0]
        if kind == "plasma":
            return [ray.put(tensors)]
        if kind == "frozen":
            return [tensorbus.ray.put_frozen(tensors)]
        return [ray.put(tensors, _tensor_transport="TENSORBUS")]

    @ray.method(tensor_transport="GLOO")
    def gloo(self, count: int, elements: int) -> list[Any]:
        return [torch.ones(elements) for _ in range(count)]


@ray.remote(enable_tensor_transport=True)
class Sink:
    def __init__(self) -> None:
        self._kept: dict[str, list[torch.Tensor]] = {}

    def consume(self, tensors: Any) -> int:
        return len(tensors)

    def pull(self, refs: list[Any], kind: str, count: int, elements: int) -> float:
        """Seconds to have what the ref holds in tensors that were there before."""
        targets = self._targets(count, elements)
        started = time.perf_counter()
        if kind in ("plasma", "numpy"):
            for target, value in zip(targets, ray.get(refs[0]), strict=True):
                target.copy_(torch.from_numpy(value) if kind == "numpy" else value)
        else:
            ray.experimental.set_target_for_ref(refs[0], targets)
            ray.get(refs[0])
        return time.perf_counter() - started

    def memcpy(self, count: int, elements: int) -> float:
        targets, sources = self._targets(count, elements), self._sources(count, elements)
        started = time.perf_counter()
        for target, source in zip(targets, sources, strict=True):
            ctypes.memmove(target.data_ptr(), source.data_ptr(), elements * 4)
        return time.perf_counter() - started

    def bare_read(self, pid: int, address: int, elements: int) -> float:
        """process_vm_readv, and nothing else."""
        target = self._targets(1, elements)[0]
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
        size = elements * 4
        started = time.perf_counter()
        done = 0
        while done < size:
            part = min(size - done, 1 << 30)
            local = (ctypes.c_size_t * 2)(target.data_ptr() + done, part)
            remote = (ctypes.c_size_t * 2)(address + done, part)
            got = call(pid, local, ctypes.c_ulong(1), remote, ctypes.c_ulong(1), ctypes.c_ulong(0))
            if got <= 0:
                raise OSError(ctypes.get_errno(), "process_vm_readv")
            done += got
        return time.perf_counter() - started

    def _targets(self, count: int, elements: int) -> list[torch.Tensor]:
        return self._tensors("targets", count, elements)

    def _sources(self, count: int, elements: int) -> list[torch.Tensor]:
        return self._tensors("sources", count, elements)

    def _tensors(self, use: str, count: int, elements: int) -> list[torch.Tensor]:
        """The same ones in every round: new memory is slow, and so is everything for a while after
        memory was given back to the system."""
        kept = self._kept.get(use, [])
        if [tensor.numel() for tensor in kept] != [elements] * count:
            kept = self._kept[use] = [torch.zeros(elements) for _ in range(count)]
            for tensor in kept:
                tensor.fill_(1)
        return kept
