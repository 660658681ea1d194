"""What a worker is told by its environment where its caller says nothing."""

from __future__ import annotations

from typing import Any

from tensorbus import _core
from tensorbus.kvstore import KVStore


def number(variable: str) -> int | None:
    """None if it is not set, ValueError if it is no number."""
    text = _core.variable(variable)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{variable} is {text!r}; expected an integer of 0 or more")
    return int(text)


def own_rank(given: int | None) -> int | None:
    """None: the store gives one. Never torchrun's RANK, which trainers and engines both have."""
    rank = number("AGENT_RANK") if given is None else given
    if rank is not None and rank < 0:
        raise ValueError(f"rank is {rank}; ranks are 0 or more")
    return rank


def own_copy_threads(given: Any) -> int | None:
    """None: TENSORBUS_COPY_THREADS, else as many as the cores allow. The core knows how many may
    be."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    raise ValueError(
        f"copy_threads is the number of threads that copy for a rank, 1 to 8, not {given!r:.100}"
    )


def own_namespace(given: str | None) -> str:
    return given or _core.variable("TENSORBUS_NAMESPACE") or "default"


def store_url(given: Any) -> str:
    """ValueError for what is neither None nor a URL."""
    if given is None:
        given = _core.variable("TENSORBUS_STORE")
        if not given:
            raise ValueError("no store: give store= or set TENSORBUS_STORE to its URL")
    if isinstance(given, KVStore):
        raise ValueError(
            f"the bus needs a store with leases and watches, which {type(given).__name__} is not "
            "known to have; give a URL, or what tensorbus.kvstore.connect() returns"
        )
    if not isinstance(given, str):
        raise ValueError(f"store is a URL or a store of tensorbus.kvstore, not {given!r:.100}")
    return given
