"""What the other side of a stream has written to the store, and how to wait for it."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tensorbus import _core
from tensorbus.kvstore import CoreStore, connect
from tensorbus.kvstore.waiting import on_thread
from tensorbus.kvstore.watch import StoreEvent, Watch

T = TypeVar("T")

# Whoever is gone for so many seconds is lost.
LEASE_SECONDS = 3.0
COMPONENT = "streams"


def open_store(store: CoreStore | str, timeout: float) -> CoreStore:
    """A connection of its own, so that leases and watches end with whoever asked for it."""
    url = store if isinstance(store, str) else f"{store.url}/{store.namespace}"
    return connect(url, timeout=timeout, component=COMPONENT)


def check_name(what: str, name: str) -> str:
    """Names are parts of keys."""
    if not isinstance(name, str) or not name or "/" in name:
        raise ValueError(f'{what} is a text without "/", not {name!r:.100}')
    return name


class Board:
    """The keys under a prefix with their decoded values, as a watch tells them."""

    def __init__(self, store: CoreStore, prefix: str) -> None:
        self._prefix = prefix
        self._watch = store.watch(prefix, current=True)
        self.known: dict[str, dict[str, Any]] = {}  # by what follows the prefix

    def until(
        self,
        found: Callable[[], T | None],
        timeout: float,
        stop: _core.Cancellation | None = None,
    ) -> T:
        """What ``found`` returns, once that is not None. ``TimeoutError`` without a message."""
        end = time.monotonic() + timeout
        while (value := found()) is None:
            # One at a time: whoever has done its part and left was there before.
            event = self._next(max(0.0, end - time.monotonic()), stop)
            if event is None:
                raise TimeoutError
            self._apply(event)
        return value

    def catch_up(self) -> None:
        """With all that has come so far: who was there an hour ago does not matter."""
        while (event := self._next(0.0, None)) is not None:
            self._apply(event)

    def close(self) -> None:
        self._watch.close()

    def _next(self, timeout: float, stop: _core.Cancellation | None) -> StoreEvent | None:
        try:
            return _next_of(self._watch, timeout, stop)
        except TimeoutError:
            return None

    def _apply(self, event: StoreEvent) -> None:
        key = event.key.removeprefix(self._prefix)
        value = None if event.value is None else decoded(event.value)
        if value is None:
            self.known.pop(key, None)
        else:
            self.known[key] = value


def _next_of(watch: Watch, timeout: float, stop: _core.Cancellation | None) -> StoreEvent:
    return watch._event(watch._watch.next(watch._scope, timeout, stop))


def encoded(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def decoded(value: bytes) -> dict[str, Any] | None:
    """None for what nobody of ours has written."""
    try:
        read = json.loads(value)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


# Streams are written once, as coroutines; who blocks and who awaits differ in how they wait.

Wait = Callable[[Board, Callable[[], Any], float], Awaitable[Any]]


async def waiting(board: Board, found: Callable[[], T | None], timeout: float) -> T:
    """Of coroutines."""
    return await on_thread(lambda stop: board.until(found, timeout, stop))


async def blocking(board: Board, found: Callable[[], T | None], timeout: float) -> T:
    """Of callers without a loop: it never suspends."""
    return board.until(found, timeout)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """A coroutine that waits by ``blocking``."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it has suspended")
