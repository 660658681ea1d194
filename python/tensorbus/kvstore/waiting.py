"""Blocking calls for coroutines."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tensorbus import _core

logger = logging.getLogger("tensorbus")

T = TypeVar("T")


class Running(Generic[T]):
    """A blocking call for a coroutine, on a thread of its own: the loop's default pool has a
    handful, and waits that wait for each other would starve it."""

    def __init__(self, call: Callable[[_core.Cancellation | None], T]) -> None:
        self.stop = _core.Cancellation()
        self._loop = asyncio.get_running_loop()
        # The call's result or its error; never an exception, so that nobody has to fetch one.
        self.outcome: asyncio.Future[tuple[T | None, BaseException | None]] = (
            self._loop.create_future()
        )
        threading.Thread(target=self._run, args=(call,), name="tensorbus wait", daemon=True).start()

    def belongs_to_this_loop(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    @property
    def stopped(self) -> bool:
        return self.stop.cancelled

    def _run(self, call: Callable[[_core.Cancellation | None], T]) -> None:
        value, error = None, None
        try:
            value = call(self.stop)
        except BaseException as caught:
            error = caught
        try:
            self._loop.call_soon_threadsafe(self._settle, value, error)
        except RuntimeError:
            logger.debug("the event loop ended before a wait did")

    def _settle(self, value: T | None, error: BaseException | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result((value, error))


async def on_thread(call: Callable[[_core.Cancellation | None], T]) -> T:
    """Awaits a blocking call; cancelling the task cancels the call."""
    running = Running(call)
    try:
        value, error = await running.outcome
    finally:
        running.stop.cancel()
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
