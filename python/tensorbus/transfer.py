"""A transfer that runs or ran: a future, and a semaphore for whoever expects one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from typing import Any, NamedTuple

from tensorbus import _core
from tensorbus.errors import BusyError

# An agent journals a semaphore's name before it is made.
_NAMING_TIME = 30.0


class Progress(NamedTuple):
    """Bytes of a transfer; ``total`` is 0 while it is not known.

    Of a recv: those that have arrived. Of a send: those that its readers say they have read, of all
    that they read from this rank; one that is lost counts no more.
    """

    done: int
    total: int


class TransferResult(NamedTuple):
    """What a successful transfer did."""

    round: int
    readers: dict[int, str]
    bytes_by_path: dict[str, int]


class Transfer:
    """What ``transfer()`` returns. It behaves like a ``posix_ipc.Semaphore`` that the end of the
    transfer counts up by one, and can be awaited.

    The semaphore gets its name in the system when ``name`` is first read; the name goes when it is
    consumed, when the client is closed or dies, and when the agent is restarted.
    """

    def __init__(self, core: _core.BusTransfer) -> None:
        self._core = core

    def done(self) -> bool:
        """Whether it is over, well or badly."""
        return self._core.done()

    def wait(self, timeout: float | None = None) -> None:
        """Until it is over; ``TimeoutError`` cancels nothing. Does not raise its error."""
        self._core.wait(timeout)

    def result(self, timeout: float | None = None) -> TransferResult:
        """What it did, or its error."""
        return TransferResult(*self._core.result(timeout))

    def cancel(self) -> None:
        """Asks the agent to end it: ``result()`` raises ``CancelledError``, unless it was over."""
        self._core.cancel("cancelled by its caller")

    @property
    def progress(self) -> Progress:
        return Progress(*self._core.progress())

    def __await__(self) -> Generator[Any, None, TransferResult]:
        return self._over().__await__()

    async def _over(self) -> TransferResult:
        if not self._core.done():
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            # A copy: a loop knows one reader per descriptor, and several tasks may wait.
            descriptor = os.dup(self._core.fd())
            loop.add_reader(descriptor, _wake, future)
            try:
                await future
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return self.result()

    @property
    def name(self) -> str:
        return self._core.name(_NAMING_TIME)

    @property
    def value(self) -> int:
        return self._core.value()

    def acquire(self, timeout: float | None = None) -> None:
        """Counts down, waiting for that if need be.

        ``BusyError`` when the time has passed, which cancels nothing; the transfer's own error if
        it failed.
        """
        if not self._core.acquire(timeout):
            raise BusyError("the transfer is not over yet")

    def release(self) -> None:
        self._core.release()

    def close(self) -> None:
        """Ends the use of the semaphore here; the transfer goes on."""

    def unlink(self) -> None:
        """Removes the semaphore's name from the system."""
        self._core.unlink()

    def __enter__(self) -> Transfer:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
