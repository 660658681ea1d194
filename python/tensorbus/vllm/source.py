"""What a trainer sends: its parameters as they are sharded, under the names of the checkpoint.

Nothing here needs vLLM; ``TensorBusSource`` is a ``WeightSource`` of vLLM by what it can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

Rename: TypeAlias = Callable[[str], str | None] | Mapping[str, str]


class TensorMeta(NamedTuple):
    """As vLLM's ``ParamMeta``."""

    name: str
    dtype: Any
    shape: tuple[int, ...]


class TensorBusSource:
    """The parameters of a module, or a state dict.

    ``rename`` gives the name in the checkpoint for a name in the module: a function, which returns
    None for what is not to be sent, or a mapping, in which other names are themselves. ``dtype`` is
    the type of floating point that the engine serves. DTensors are passed on as they are: each rank
    sends its own shards, and nothing is gathered.
    """

    def __init__(self, model: Any, rename: Rename | None = None, dtype: Any = None) -> None:
        self._model, self._rename, self.dtype = model, rename, dtype

    def tensors(self) -> dict[str, Any]:
        """By the checkpoint's names, as they are now."""
        is_state = isinstance(self._model, Mapping)
        items = self._model.items() if is_state else self._model.named_parameters()
        named: dict[str, Any] = {}
        for name, tensor in items:
            own = self._name(name)
            if own is None:
                continue
            if own in named:
                raise ValueError(f'two tensors are called "{own}", one of them was "{name}"')
            named[own] = tensor.detach()
        return named

    def metadata(self) -> list[TensorMeta]:
        return [
            TensorMeta(name, self._dtype(tensor), tuple(tensor.shape))
            for name, tensor in self.tensors().items()
        ]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Whole tensors, for backends that want those: all ranks go through it together."""
        for name, tensor in self.tensors().items():
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            yield name, whole.to(self._dtype(tensor))

    def _name(self, name: str) -> str | None:
        rename = self._rename
        if rename is None:
            return name
        return rename.get(name, name) if isinstance(rename, Mapping) else rename(name)

    def _dtype(self, tensor: Any) -> Any:
        """Floating point is narrowed, never widened."""
        if self.dtype is None or not tensor.is_floating_point():
            return tensor.dtype
        return min(self.dtype, tensor.dtype, key=lambda each: each.itemsize)
