"""Tensors in memory that other processes of this host can map.

Such memory is copied once on its way to a reader; any other is read through the kernel, slower.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tensorbus import _core


def uses_torch() -> bool:
    """Whether results without a given type are torch's: if this process has imported it."""
    return "torch" in sys.modules


def empty(shape: Sequence[int] | int, dtype: Any = "float32") -> Any:
    """A tensor in the pool, with whatever its memory last held.

    A ``torch.dtype`` gives a torch tensor, a numpy type a numpy array, a name (``"bfloat16"``) what
    this process uses: torch if it is imported, else numpy. The memory goes back to the pool when
    the last tensor that shares it is gone.
    """
    (tensor,) = _core.empty([_form(shape, dtype)])
    return tensor


def _form(shape: Sequence[int] | int, dtype: Any) -> tuple[list[int], str, bool]:
    """With the type's name, and whether it is to be torch's."""
    sizes = [shape] if isinstance(shape, int) else list(shape)
    is_torch = uses_torch() if isinstance(dtype, str) else type(dtype).__module__ == "torch"
    return sizes, dtype_name(dtype), is_torch


def dtype_name(dtype: Any) -> str:
    """Of a type of torch or numpy, or a name."""
    if isinstance(dtype, str) or type(dtype).__module__ == "torch":
        return str(dtype)
    import numpy as np

    return str(np.dtype(dtype).name)


def dtype_of(name: str) -> Any:
    """The type of that name of torch, if this process uses it; else the name."""
    return getattr(sys.modules["torch"], name) if uses_torch() else name


def share_(tensor: Any) -> Any:
    """Moves a tensor into the pool, unless it is there, and returns it.

    A torch tensor (a ``Parameter`` too) is changed in place and becomes contiguous; views that were
    made of it before keep the old memory. Of a numpy array, whose memory cannot be changed, a copy
    is returned. One that a link has sent before gets the memory that the link had for it.
    """
    from tensorbus.stage import place_of

    if _core.is_pooled(tensor):
        return tensor
    if type(tensor).__module__.startswith("numpy"):
        array = place_of(tensor)
        if array is None:
            array = empty(tensor.shape, tensor.dtype)
            array[...] = tensor
        return array
    torch = sys.modules.get("torch")  # who has a tensor of torch has imported it
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch tensor or a numpy array, not {type(tensor).__name__}")
    with torch.no_grad():
        pooled = place_of(tensor)
        if pooled is None:
            pooled = empty(tensor.shape, tensor.dtype)
            pooled.copy_(tensor)
        tensor.data = pooled
    return tensor


def use() -> dict[str, int]:
    """Bytes of this process' pool: ``reserved`` from the operating system, ``lent`` to tensors."""
    reserved, lent = _core.pool_use()
    return {"reserved": reserved, "lent": lent}


def trim() -> None:
    """Gives memory that no tensor uses back to the operating system."""
    _core.trim_pool()
