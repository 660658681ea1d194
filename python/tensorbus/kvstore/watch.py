"""The changes of keys, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from tensorbus import _core
from tensorbus.errors import CancelledError
from tensorbus.kvstore.waiting import Running

if TYPE_CHECKING:
    from typing_extensions import Self


class StoreEvent(NamedTuple):
    """One change of a key: ``value`` is None for a delete."""

    kind: Literal["put", "delete"]
    key: str
    value: bytes | None
    revision: int


class Watch(Iterator[StoreEvent], AsyncIterator[StoreEvent]):
    """The changes of keys under a prefix, in order; an iterator and an asynchronous iterator.

    Iteration ends when it is closed. Changes made while the connection was lost are merged: the
    last state of each key is reported.
    """

    def __init__(self, watch: _core.Watch, scope: _core.KeyScope) -> None:
        self._watch = watch
        self._scope = scope
        self._closed = False
        self._reading: Running[tuple[bool, str, bytes | None, int]] | None = None

    def next(self, timeout: float | None = None) -> StoreEvent:
        """The next change; ``TimeoutError`` if none comes in time (the watch goes on)."""
        return self._event(self._watch.next(self._scope, timeout))

    def _event(self, raw: tuple[bool, str, bytes | None, int]) -> StoreEvent:
        is_put, key, value, revision = raw
        return StoreEvent("put" if is_put else "delete", key, value, revision)

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> StoreEvent:
        try:
            return self.next()
        except CancelledError:
            if self._closed:
                raise StopIteration from None
            raise

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> StoreEvent:
        while True:
            # A task may be cancelled at the very moment an event arrives. What its thread has read
            # by then is left here for the next task, so that no event is lost.
            if self._reading is None or not self._reading.belongs_to_this_loop():
                self._reading = Running(lambda stop: self._watch.next(self._scope, None, stop))
            reading = self._reading
            try:
                raw, error = await asyncio.shield(reading.outcome)
            except asyncio.CancelledError:
                reading.stop.cancel()
                raise
            self._reading = None
            if raw is not None:
                return self._event(raw)
            if self._closed and isinstance(error, CancelledError):
                raise StopAsyncIteration
            if not (reading.stopped and isinstance(error, CancelledError)):
                assert error is not None
                raise error

    def close(self) -> None:
        """Ends the watch and iterations over it; a blocked ``next`` raises
        ``tensorbus.CancelledError``."""
        self._closed = True
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
