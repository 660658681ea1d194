"""For scripts that were written for CUDA: their tensors go to the CPU.

``device="cuda"`` anywhere in a call of torch means the CPU, ``.cuda()`` does nothing, and calls of
``torch.cuda`` that only select or synchronise do nothing. What really needs a GPU still fails.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def _is_cuda(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if _is_cuda(value) else value


class _CpuForCuda(TorchFunctionMode):
    """Sees every call of torch before torch does."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.Tensor.cuda:
            return args[0]
        given = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        if given.get("pin_memory"):
            del given["pin_memory"]
        return function(*map(_on_cpu, args), **given)


class _Nothing:
    """Stands in for streams, events and whatever else only orders work on a device."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: object) -> float:
        return 0.0


def _nothing(*_: object, **__: object) -> None: ...


@contextlib.contextmanager
def _nothing_around(*_: object, **__: object) -> Iterator[None]:
    yield


_REPLACED: dict[str, Any] = {
    "Event": _Nothing,
    "Stream": _Nothing,
    "current_device": lambda: 0,
    "current_stream": _Nothing,
    "default_stream": _Nothing,
    "device": _nothing_around,
    "device_count": lambda: 1,
    "empty_cache": _nothing,
    "init": _nothing,
    "is_available": lambda: True,
    "manual_seed": _nothing,
    "manual_seed_all": _nothing,
    "set_device": _nothing,
    "set_stream": _nothing,
    "stream": _nothing_around,
    "synchronize": _nothing,
}


class _Stub(types.ModuleType):
    """A module of kernels that is not there: importing from it works, calling it does not."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_: object, **__: object) -> None:
            raise RuntimeError(f"{self.__name__}.{name} is not installed")

        return missing


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self,
        name: str,
        path: object,  # noqa: ARG002
        target: object = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "optimus":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def install() -> None:
    warnings.warn(
        "TENSORBUS_CUDA_SHIM=1: tensors for cuda are made on the CPU, and torch.cuda does nothing",
        stacklevel=2,
    )
    for name, value in _REPLACED.items():
        setattr(torch.cuda, name, value)
    set_default_device = torch.set_default_device
    torch.set_default_device = lambda device: set_default_device(_on_cpu(device))
    _CpuForCuda().__enter__()  # type: ignore[no-untyped-call]
    # Last: it is asked only for what nobody else finds.
    sys.meta_path.append(_StubFinder())
