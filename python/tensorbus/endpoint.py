"""One-sided tensor transport between any two processes: no ranks, no groups.

>>> descriptor = endpoint.expose([weight, bias])   # in one process; send the bytes anyhow
>>> weight, bias = endpoint.read(descriptor)       # in another
"""

from __future__ import annotations

import asyncio
import atexit
import os
import weakref
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from tensorbus import _core
from tensorbus.kvstore import CoreStore, connect
from tensorbus.pool import dtype_of, uses_torch

if TYPE_CHECKING:
    from typing_extensions import Self

_open: weakref.WeakSet[Endpoint] = weakref.WeakSet()


class Read:
    """A read under way. Awaitable; any thread may wait for it, or several.

    The targets belong to the read until it is done. A read that is dropped is cancelled first.
    """

    def __init__(self, read: _core.Read) -> None:
        self._read = read

    def done(self) -> bool:
        """Whether it is over, well or not; ``wait`` then returns or raises at once."""
        return self._read.done()

    def wait(self, timeout: float | None = None) -> list[Any]:
        """The filled targets. ``TimeoutError`` after ``timeout`` seconds; the read goes on then."""
        return self._read.wait(timeout)

    def cancel(self) -> None:
        """Ends it soon, if it is not over: ``wait`` raises ``tensorbus.CancelledError``."""
        self._read.cancel()

    @property
    def path(self) -> str:
        """How the bytes come: ``mapped``, ``process_vm_readv``, ``packed`` or ``network``, from or
        to a device ``staged``, ``network staged`` or ``device window``, or ``alias`` if they need
        not; empty until that is known."""
        return self._read.path

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._result().__await__()

    async def _result(self) -> list[Any]:
        if not self._read.done():
            loop = asyncio.get_running_loop()
            ready: asyncio.Future[None] = loop.create_future()
            # A copy: a loop knows one reader per descriptor, and several tasks may wait.
            descriptor = os.dup(self._read.fileno())
            loop.add_reader(descriptor, _wake, ready)
            try:
                await ready
            except asyncio.CancelledError:
                self._read.settle()
                raise
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return self._read.wait(0)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class Endpoint:
    """Exposes tensors of this process, and reads those of others.

    On one host bytes go through shared memory; ``bind`` (default: ``TENSORBUS_BIND``) is an address
    of this machine through which processes on other hosts are reached and reach it, with UCX, on
    trusted networks only, at one of ``ports`` (the first and the last; default:
    ``TENSORBUS_PORTS``, or any). ``name`` is what the errors of others call this process.

    Whoever has a descriptor may read what this endpoint exposes: it carries ``secret``, a random
    one if none is given. With ``store`` (one from ``tensorbus.kvstore`` or its URL) descriptors
    carry none; readers know the secret from the same namespace of the same store.

    ``metrics`` (default: ``TENSORBUS_METRICS``) is the ``HOST:PORT`` of a page with this process's
    metrics, for Prometheus; port 0 picks a free one.

    All methods may be called from any thread. In a forked child they raise: make a new one there.
    A context manager.
    """

    def __init__(
        self,
        store: CoreStore | str | None = None,
        *,
        secret: str | bytes | None = None,
        name: str = "",
        bind: str | None = None,
        ports: tuple[int, int] = (0, 0),
        timeout: float | None = 30.0,
        metrics: str | None = None,
    ) -> None:
        if store is not None and secret is not None:
            raise ValueError("give a store or a secret, not both")
        key = secret.encode() if isinstance(secret, str) else secret
        if store is not None:
            key = _secret_from(store, timeout)
        if bind is None:
            bind = _core.variable("TENSORBUS_BIND") or ""
        self._endpoint = _core.Endpoint(name, key, store is None, bind, *ports, metrics)
        _open.add(self)

    def expose(self, tensors: Sequence[Any], *, frozen: bool = False, stream: Any = None) -> bytes:
        """A descriptor of these tensors: torch, numpy or anything with ``__dlpack__``, of any
        strides, in CPU memory or on CUDA devices.

        They are kept, and must not be written or resized, until ``release``. Tensors in the pool
        (``tensorbus.empty``, ``tensorbus.share_``) are read fastest.

        ``frozen`` is a promise: these tensors, all in the pool, are never written again. Readers on
        this host then get the memory itself (what they write stays theirs). It goes back to the
        pool after ``release`` and when no reader has it any more.

        Of tensors on CUDA devices readers get what the current stream of the calling thread, or
        ``stream``, has been given so far; the call waits for that. Nothing of this was run on
        a GPU yet: docs/device.md.
        """
        return self._endpoint.expose(tensors, frozen, stream)

    def release(self, descriptor: bytes) -> bool:
        """Takes the tensors back; they may be written again when it returns. Reads that are not
        over raise ``tensorbus.WithdrawnError``. False if it was released before."""
        return self._endpoint.release(descriptor)

    def start_read(
        self,
        descriptor: bytes,
        into: Sequence[Any] | None = None,
        *,
        parts: Sequence[tuple[int, Sequence[int]]] | None = None,
        timeout: float | None = None,
        torch: bool | None = None,
        device: Any = None,
        stream: Any = None,
    ) -> Read:
        """Starts to read and returns at once, or when targets on CUDA devices may be written.
        Arguments as those of ``read``; ``torch`` says whose tensors new ones are."""
        if torch is None:
            torch = uses_torch()
        boxes = None if parts is None else _checked(parts, into)
        if device is not None:
            into = _new_tensors(descriptor, into, device)
        return Read(self._endpoint.read(descriptor, into, torch, timeout, boxes, stream))

    def read(
        self,
        descriptor: bytes,
        into: Sequence[Any] | None = None,
        *,
        parts: Sequence[tuple[int, Sequence[int]]] | None = None,
        timeout: float | None = None,
        device: Any = None,
        stream: Any = None,
    ) -> list[Any]:
        """The tensors of a descriptor.

        ``into`` is one target per tensor, of its shape; another type is converted. Without it new
        tensors in the pool are returned: torch's if this process has imported torch, else numpy's.
        After an error the targets hold anything, and nothing writes to them any more.

        With ``parts`` every target is filled with a box of a tensor: ``(index, start)`` names the
        tensor and where in it the box begins, the target's shape is the box's. Only those bytes
        move. Some hundreds of parts at a time.

        With ``device`` new tensors are torch's, on that device. Targets on CUDA devices are written
        after what the current stream of the calling thread, or ``stream``, has been given; when the
        call returns the bytes are in place for every stream.
        """
        read = self.start_read(
            descriptor, into, parts=parts, timeout=timeout, device=device, stream=stream
        )
        try:
            return read.wait()
        except BaseException:
            read._read.settle()
            raise

    async def read_async(
        self,
        descriptor: bytes,
        into: Sequence[Any] | None = None,
        *,
        parts: Sequence[tuple[int, Sequence[int]]] | None = None,
        timeout: float | None = None,
        device: Any = None,
        stream: Any = None,
    ) -> list[Any]:
        """As ``read``, for asyncio."""
        return await self.start_read(
            descriptor, into, parts=parts, timeout=timeout, device=device, stream=stream
        )

    def stats(self) -> dict[str, Any]:
        """What was read, by path, and what is open."""
        return self._endpoint.stats()

    def close(self) -> None:
        """Takes back what is exposed and ends running reads with ``tensorbus.CancelledError``."""
        self._endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def describe(descriptor: bytes) -> list[tuple[str, tuple[int, ...]]]:
    """(type, shape) of every tensor that a descriptor describes."""
    return _core.describe(descriptor)


def _checked(
    parts: Sequence[tuple[int, Sequence[int]]], into: Sequence[Any] | None
) -> list[tuple[int, list[int]]]:
    if into is None:
        raise ValueError("parts are read into targets: give into=, whose shapes are the parts'")
    boxes = [(int(index), [int(each) for each in start]) for index, start in parts]
    negative = next((index for index, _ in boxes if index < 0), None)
    if negative is not None:
        raise ValueError(f"parts: {negative} is no position of a tensor")
    return boxes


def _new_tensors(descriptor: bytes, into: Sequence[Any] | None, device: Any) -> list[Any]:
    if into is not None:
        raise ValueError("give into or device, not both")
    import torch

    return [
        torch.empty(shape, dtype=dtype_of(dtype), device=device)
        for dtype, shape in describe(descriptor)
    ]


def _secret_from(store: CoreStore | str, timeout: float | None) -> bytes:
    if isinstance(store, str):
        with connect(store, timeout=timeout) as connected:
            return _secret_from(connected, timeout)
    return store.shared_secret("endpoint-secret", component="tensorbus")


@atexit.register
def _close_all() -> None:
    """Before the interpreter takes the exposed tensors away."""
    for endpoint in list(_open):
        endpoint.close()
