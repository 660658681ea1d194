"""What a torch DTensor tells about itself. torch is not imported: who passes one has done it."""

import sys
from collections.abc import Sequence
from typing import Any

from tensorbus.layout import mesh_of, placement_of


def is_dtensor(tensor: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Any) -> tuple[Any, list[int] | None]:
    """The tensor of this rank and, of a DTensor, the global shape."""
    if not is_dtensor(tensor):
        return tensor, None
    return tensor.to_local(), [int(size) for size in tensor.shape]


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
