"""Memory of a link for copies of tensors that other processes cannot map as they are."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tensorbus import _core, pool
from tensorbus._core import Tensors

_live: weakref.WeakSet[Stage] = weakref.WeakSet()


class Stage:
    """Places for those of a registration's tensors that are not in the pool, in one block."""

    def __init__(
        self,
        tensors: list[Any],
        views: Tensors,
        turn: threading.Lock,
        copy_into: Callable[[list[Any], list[Any]], None],
    ) -> None:
        """``turn`` is held by whoever fills the stage or lends it; ``copy_into`` is the client's,
        whose threads copy."""
        pooled = set(views.pooled())
        staged = [index for index in range(len(tensors)) if index not in pooled]
        places = pool.empty_like_all([tensors[index] for index in staged])
        self.places: dict[int, Any] = dict(zip(staged, places, strict=True))
        self._owners = {
            views[index][0]: (index, views[index], _owner(tensors[index])) for index in staged
        }
        self._turn = turn
        self._copy_into = copy_into
        _live.add(self)

    def placed(self, tensors: Sequence[Any]) -> list[Any]:
        """What the agent knows: the places, and the tensors that need none."""
        return [self.places.get(index, tensor) for index, tensor in enumerate(tensors)]

    def fill(self, tensors: list[Any], views: Tensors) -> Tensors:
        """Copies what has a place; returns where everything is now."""
        if not self.places:
            return views
        self._copy_into(list(self.places.values()), [tensors[index] for index in self.places])
        return Tensors(self.placed(tensors))

    def give(self, tensor: Any, view: tuple[Any, ...]) -> Any | None:
        """A tensor's place, with its contents: from now on it is the tensor and no copy of it."""
        index, then, owner = self._owners.get(view[0], (0, (), None))
        if then != view or not _owns(owner, tensor) or not self._turn.acquire(blocking=False):
            return None  # another's, or lent right now
        try:
            place = self.places.pop(index, None)
            if place is not None:
                _core.copy_into([place], [tensor])
            return place
        finally:
            self._turn.release()


def place_of(tensor: Any) -> Any | None:
    """Where a link has staged this tensor, if one has and does not use it now."""
    if not _live:
        return None
    view = Tensors([tensor])[0]
    places = (stage.give(tensor, view) for stage in list(_live))
    return next((place for place in places if place is not None), None)


# What was at an address may be gone and another tensor be there: only its owner has its place. A
# model gives other objects for its parameters every time, but always with the same storage.


def _owner(tensor: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return weakref.ref(tensor)
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _owns(owner: Any, tensor: Any) -> bool:
    if isinstance(owner, weakref.ref):
        return owner() is tensor
    return owner is not None and not owner.expired() and owner == _owner(tensor)
