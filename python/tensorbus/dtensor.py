"""What a torch DTensor tells about itself. torch is not imported: who passes one has done it."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from tensorbus.layout import mesh_of, placement_of


def dtensor_types() -> tuple[Any, ...]:
    """For ``isinstance`` and ``issubclass``: empty while there are no DTensors in this process."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else (module.DTensor,)


def local_parts(tensors: Sequence[Any]) -> list[Any]:
    """The tensors of this rank."""
    types = dtensor_types()
    with without_gradients():  # or to_local() takes fifty times as long
        return [tensor.to_local() if isinstance(tensor, types) else tensor for tensor in tensors]


def global_shapes(tensors: Sequence[Any]) -> list[Sequence[int] | None]:
    """Of the DTensors."""
    types = dtensor_types()
    return [tensor.shape if isinstance(tensor, types) else None for tensor in tensors]


def check_layout(tensor: Any, pair: str, mesh: Sequence[int], placements: Sequence[Any]) -> None:
    """ValueError unless a DTensor is laid out as its pair was told."""
    own_mesh = mesh_of(tensor.device_mesh)[0]
    own = [placement_of(placement) for placement in tensor.placements]
    dims = len(tensor.shape)
    if own_mesh != list(mesh) or _positive(own, dims) != _positive(placements, dims):
        raise ValueError(
            f'a DTensor of pair "{pair}" is laid out as {tuple(own)} on a mesh {tuple(own_mesh)}, '
            f"but init_pair said {tuple(placements)} on {tuple(mesh)}"
        )


def _positive(placements: Sequence[Any], dims: int) -> list[str]:
    """Shard(-1) is the last dimension."""
    texts = []
    for placement in placements:
        text = repr(placement)
        dim = getattr(placement, "dim", 0)
        texts.append(text.replace(f"({dim}", f"({dim + dims}", 1) if dim < 0 else text)
    return texts


def without_gradients() -> contextlib.AbstractContextManager[Any]:
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.no_grad()
