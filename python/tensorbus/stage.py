"""Places of tensors in the stages of links: whoever shares such a tensor later gets its place."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from tensorbus import _core
from tensorbus._core import Tensors
from tensorbus.state_dict import Entries

_live: weakref.WeakSet[Places] = weakref.WeakSet()


class Places:
    """Whose tensors a link has staged."""

    def __init__(self, link: _core.BusLink) -> None:
        self._link = link
        self._owners: dict[str, dict[int, Any]] = {}  # by name and address
        _live.add(self)

    def note(self, name: str, call: _core.LinkCall, entries: Entries) -> None:
        """After a call that sent these."""
        staged = call.places()
        if staged is not None:
            self._owners[name] = {
                entries.views[index][0]: _owner(entries.locals[index]) for index in staged
            }

    def give(self, tensor: Any, views: Tensors) -> Any | None:
        """The tensor's place, with its contents: from now on it is the tensor and no copy."""
        torch = sys.modules.get("torch")
        is_torch = torch is not None and isinstance(tensor, torch.Tensor)
        for name, owners in list(self._owners.items()):
            owner = owners.get(views[0][0])
            if owner is not None and _owns(owner, tensor):
                place = self._link.give_place(name, views, is_torch)
                if place is not None:
                    return place
        return None


def place_of(tensor: Any) -> Any | None:
    """Where a link has staged this tensor, if one has and does not use it now."""
    if not _live:
        return None
    views = Tensors([tensor])
    places = (places.give(tensor, views) for places in list(_live))
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
    return not owner.expired() and owner == _owner(tensor)
