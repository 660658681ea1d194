"""A redistribution inside one process: the way to try a plan and to test it."""

from collections.abc import Mapping
from typing import Any

from tensorbus import _core


def redistribute(
    source: _core.Layout | str,
    source_tensors: Mapping[int, Any],
    target: _core.Layout | str,
    target_tensors: Mapping[int, Any],
) -> None:
    """Copies a tensor from the local tensors of one layout into those of another.

    Both mappings give every rank of their layout its local tensor, in CPU memory: torch, numpy or
    anything with ``__dlpack__``; of a DTensor its local part is taken. What the targets hold is
    replaced, in their type; a ``Partial`` source is reduced. Targets may not share memory with
    sources. Layouts may be given in their text form (``"4x2:S0,S1"``).
    """
    _core.redistribute(
        _core.Layout.parse(source) if isinstance(source, str) else source,
        {rank: _local(tensor) for rank, tensor in source_tensors.items()},
        _core.Layout.parse(target) if isinstance(target, str) else target,
        {rank: _local(tensor) for rank, tensor in target_tensors.items()},
    )


def _local(tensor: Any) -> Any:
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
