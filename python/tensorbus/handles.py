"""Calls of a link that run while their caller goes on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any

from tensorbus import _core
from tensorbus.transfer import Progress


class LinkHandle:
    """A call that runs: a future that can be awaited.

    Its tensors are the caller's again when it is done. A task that is cancelled while it awaits
    the handle cancels the call and waits until it is done.
    """

    def __init__(self, call: _core.LinkCall, work: Callable[[], int]) -> None:
        self._call = call
        self._future: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._future.set_running_or_notify_cancel()  # it ends by cancel() below
        threading.Thread(target=self._run, args=[work], name="tensorbus link", daemon=True).start()

    def _run(self, work: Callable[[], int]) -> None:
        try:
            try:
                version = work()
            finally:
                self._call.leave()
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(version)

    def done(self) -> bool:
        """Whether it is over, well or badly."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> None:
        """Until it is over; ``TimeoutError`` cancels nothing. Does not raise its error."""
        if not concurrent.futures.wait([self._future], timeout).done:
            raise TimeoutError("the call is not over yet")

    def result(self, timeout: float | None = None) -> int:
        """The version, or its error; ``TimeoutError``, too, if it is not over in time: then
        ``done()`` is false."""
        self.wait(timeout)
        return self._future.result()

    def cancel(self) -> None:
        """Ends it: ``result()`` raises ``tensorbus.CancelledError``, unless it was over. It is done
        when nobody writes to its tensors any more, or reads them."""
        self._call.cancel()

    @property
    def progress(self) -> Progress:
        """Of its bytes; (0, 0) before the first."""
        return Progress(*self._call.progress())

    def __await__(self) -> Generator[Any, None, int]:
        return self._over().__await__()

    async def _over(self) -> int:
        over = asyncio.wrap_future(self._future)
        try:
            return await asyncio.shield(over)
        except asyncio.CancelledError:
            self.cancel()
            while not over.done():
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await asyncio.shield(over)
            raise


class PullHandle(LinkHandle):
    """What ``Link.pull_async`` returns."""


class Staged:
    """When the tensors of a send are the caller's again."""

    def __init__(self, call: _core.LinkCall) -> None:
        self._call = call

    def done(self) -> bool:
        return self._call.staged()

    def wait(self, timeout: float | None = None) -> None:
        """``TimeoutError`` cancels nothing. Does not raise the error of the send, whose end
        ends it, too."""
        if not self._call.wait_until_staged(timeout):
            raise TimeoutError("the tensors are not copied yet, or are read where they are")


class SendHandle(LinkHandle):
    """What ``Link.send_state_dict_async`` returns."""

    @property
    def staged(self) -> Staged:
        """Tensors that are not in the pool are copied first; the others are read where they are,
        and are the caller's when all readers have read."""
        return Staged(self._call)

    @property
    def readers(self) -> dict[int, str]:
        """Which rank has ``"read"`` it, has ``"failed"`` or is ``"lost"``, once it is done."""
        return self._call.readers()
