"""The store's interface: what every backend offers, and the one implementation on the C++ core."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Generic, Literal, NamedTuple, Self, TypeVar

from tensorbus import _core
from tensorbus.errors import CancelledError

logger = logging.getLogger("tensorbus")

Value = str | bytes | bytearray | memoryview
T = TypeVar("T")


class StoreEvent(NamedTuple):
    """One change of a key: ``value`` is None for a delete."""

    kind: Literal["put", "delete"]
    key: str
    value: bytes | None
    revision: int


def to_bytes(value: Value) -> bytes:
    """A value as it is stored: text as UTF-8, anything bytes-like as it is."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a value must be str or bytes-like, not {type(value).__name__}")


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
        return self._event(self._watch.next(timeout))

    def _event(self, raw: tuple[bool, str, bytes | None, int]) -> StoreEvent:
        is_put, key, value, revision = raw
        return StoreEvent("put" if is_put else "delete", self._scope.local(key), value, revision)

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
                self._reading = Running(lambda stop: self._watch.next(None, stop))
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


class Lease:
    """Keys set under a lease vanish when it lapses: when its holder died or was cut off for longer
    than ``ttl`` seconds, or on ``revoke``. The store renews it until then. A context manager."""

    def __init__(self, lease: _core.Lease, timeout: float | None) -> None:
        self._lease = lease
        self._timeout = timeout

    @property
    def ttl(self) -> float:
        return self._lease.time_to_live

    @property
    def alive(self) -> bool:
        """False once it lapsed or was revoked."""
        return self._lease.alive

    def refresh(self) -> None:
        """Counts the time to live anew; only needed with ``keep_alive=False``."""
        self._lease.refresh(self._timeout)

    def revoke(self) -> None:
        """Removes its keys now."""
        self._lease.revoke(self._timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.alive:
            self.revoke()


class KVStore(ABC):
    """Small values under string keys, and ways to wait for them.

    The full key is ``{namespace}/{component}/{key}``; every method takes ``component=`` to look
    into another component. ``str`` values are stored as UTF-8; results are ``bytes``.
    """

    @abstractmethod
    def set(
        self, key: str, value: Value, *, component: str | None = None, lease: Lease | None = None
    ) -> None:
        """Sets a key. When it returns, every other client sees the value."""

    @abstractmethod
    def get(self, key: str, *, component: str | None = None) -> bytes | None:
        """The value, or None if the key is absent."""

    @abstractmethod
    def exists(self, key: str, *, component: str | None = None) -> bool:
        """Whether the key is there, also with an empty value."""

    @abstractmethod
    def delete(self, key: str, *, component: str | None = None) -> bool:
        """Deletes the key; whether it existed."""

    @abstractmethod
    def set_bytes(self, key: str, data: bytes, *, component: str | None = None) -> None:
        """Stores raw bytes, zero bytes included."""

    @abstractmethod
    def get_bytes(self, key: str, *, component: str | None = None) -> bytes | None:
        """The raw bytes, or None if the key is absent."""

    @abstractmethod
    def wait_for_key(
        self, key: str, timeout: float = 3600.0, *, component: str | None = None
    ) -> bytes:
        """Blocks until the key exists; its value. ``TimeoutError`` names what is missing."""

    @abstractmethod
    def wait_for_keys(
        self,
        key_pattern: str,
        expected_count: int,
        value: Value | None = "1",
        timeout: float = 3600.0,
        candidate_keys: list[str] | None = None,
        *,
        component: str | None = None,
    ) -> list[str]:
        """Blocks until ``expected_count`` keys match the pattern and hold ``value``, all at one
        moment; those keys, sorted.

        ``*`` matches anything ("/" too), ``?`` one character, ``[..]`` one of a set. ``value=None``
        accepts any value. ``candidate_keys`` is a hint, but required against torch's own server,
        which cannot search.
        """

    @abstractmethod
    def wait_for_value(
        self, key: str, expected: Value, timeout: float = 3600.0, *, component: str | None = None
    ) -> bytes:
        """Blocks until the key holds this value."""

    @abstractmethod
    def close(self, cleanup: bool = True) -> None:
        """Releases this client and ends its blocked calls. With ``cleanup`` the keys it set under
        its leases vanish now; nobody else's keys are touched."""


class CoreStore(KVStore):
    """A store on the C++ core; what ``connect`` returns."""

    def __init__(
        self, core: _core.Store, namespace: str, component: str, timeout: float | None
    ) -> None:
        self._core = core
        self._scopes: dict[str, _core.KeyScope] = {}
        self.namespace = namespace
        self.component = component
        self.timeout = timeout
        self._scope(None)

    def _scope(self, component: str | None) -> _core.KeyScope:
        name = self.component if component is None else component
        scope = self._scopes.get(name)
        if scope is None:
            scope = self._scopes[name] = _core.KeyScope(self.namespace, name)
        return scope

    @property
    def url(self) -> str:
        """How the store was reached, without secrets."""
        return self._core.url

    @property
    def capabilities(self) -> _core.Capabilities:
        """What this backend can do: leases, watches, waits in the server, exactly-once changes."""
        return self._core.capabilities()

    def set(
        self, key: str, value: Value, *, component: str | None = None, lease: Lease | None = None
    ) -> None:
        self.multi_set({key: value}, component=component, lease=lease)

    def multi_set(
        self,
        values: Mapping[str, Value],
        *,
        component: str | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Sets many keys in one request; others see all of them or none."""
        scope = self._scope(component)
        entries = [(scope.full(key), to_bytes(value)) for key, value in values.items()]
        self._core.set(entries, self.timeout, lease._lease if lease is not None else None)

    def get(self, key: str, *, component: str | None = None) -> bytes | None:
        return self._core.get([self._scope(component).full(key)], self.timeout)[0]

    def multi_get(self, keys: Iterable[str], *, component: str | None = None) -> list[bytes | None]:
        """The values of many keys at one moment, in order; None for absent ones."""
        scope = self._scope(component)
        return self._core.get([scope.full(key) for key in keys], self.timeout)

    def exists(self, key: str, *, component: str | None = None) -> bool:
        return self._core.exists(self._scope(component).full(key), self.timeout)

    def delete(self, key: str, *, component: str | None = None) -> bool:
        return self._core.erase(self._scope(component).full(key), self.timeout)

    def set_bytes(self, key: str, data: bytes, *, component: str | None = None) -> None:
        self.set(key, data, component=component)

    def get_bytes(self, key: str, *, component: str | None = None) -> bytes | None:
        return self.get(key, component=component)

    def add(self, key: str, n: int, *, component: str | None = None) -> int:
        """Adds to a decimal number (an absent key counts as 0); the sum."""
        return self._core.add(self._scope(component).full(key), n, self.timeout)

    def compare_and_set(
        self, key: str, expected: Value | None, desired: Value, *, component: str | None = None
    ) -> tuple[bool, bytes | None]:
        """Sets the key if it holds ``expected`` (None: if it is absent); whether it did, and the
        value that the key holds now."""
        wanted = None if expected is None else to_bytes(expected)
        full_key = self._scope(component).full(key)
        return self._core.compare_and_set(full_key, wanted, to_bytes(desired), self.timeout)

    def list_keys(self, prefix: str = "", *, component: str | None = None) -> list[str]:
        """The keys that start with ``prefix``, sorted."""
        scope = self._scope(component)
        return [scope.local(key) for key in self._core.list_keys(scope.full(prefix), self.timeout)]

    # Each wait exists once, as a function of a cancellation; the two public forms run it.

    def _key_wait(
        self, key: str, value: Value | None, timeout: float | None, component: str | None
    ) -> Callable[[_core.Cancellation | None], bytes]:
        full_key = self._scope(component).full(key)
        wanted = None if value is None else to_bytes(value)
        return lambda stop: self._core.wait(full_key, False, 1, wanted, [], timeout, stop)[1]

    def _keys_wait(
        self,
        key_pattern: str,
        expected_count: int,
        value: Value | None,
        timeout: float | None,
        candidate_keys: Sequence[str] | None,
        component: str | None,
    ) -> Callable[[_core.Cancellation | None], list[str]]:
        if expected_count < 0:
            raise ValueError(f"expected_count must be >= 0, not {expected_count}")
        scope = self._scope(component)
        wanted = None if value is None else to_bytes(value)
        candidates = [scope.full(key) for key in candidate_keys or ()]

        def wait(stop: _core.Cancellation | None) -> list[str]:
            pattern = scope.full_pattern(key_pattern)
            keys, _ = self._core.wait(
                pattern, True, expected_count, wanted, candidates, timeout, stop
            )
            return [scope.local(key) for key in keys]

        return wait

    def _barrier_wait(
        self,
        name: str,
        n: int,
        timeout: float | None,
        member: str | int | None,
        component: str | None,
    ) -> Callable[[_core.Cancellation | None], None]:
        if n < 1:
            raise ValueError(f"a barrier needs at least 1 member, not {n}")
        full_name = self._scope(component).full(name)
        who = default_member() if member is None else str(member)
        return lambda stop: self._core.barrier(full_name, n, who, timeout, stop)

    def wait_for_key(
        self, key: str, timeout: float | None = 3600.0, *, component: str | None = None
    ) -> bytes:
        return self._key_wait(key, None, timeout, component)(None)

    async def wait_for_key_async(
        self, key: str, timeout: float | None = 3600.0, *, component: str | None = None
    ) -> bytes:
        return await on_thread(self._key_wait(key, None, timeout, component))

    def wait_for_value(
        self,
        key: str,
        expected: Value,
        timeout: float | None = 3600.0,
        *,
        component: str | None = None,
    ) -> bytes:
        return self._key_wait(key, expected, timeout, component)(None)

    async def wait_for_value_async(
        self,
        key: str,
        expected: Value,
        timeout: float | None = 3600.0,
        *,
        component: str | None = None,
    ) -> bytes:
        return await on_thread(self._key_wait(key, expected, timeout, component))

    def wait_for_keys(
        self,
        key_pattern: str,
        expected_count: int,
        value: Value | None = "1",
        timeout: float | None = 3600.0,
        candidate_keys: Sequence[str] | None = None,
        *,
        component: str | None = None,
    ) -> list[str]:
        return self._keys_wait(
            key_pattern, expected_count, value, timeout, candidate_keys, component
        )(None)

    async def wait_for_keys_async(
        self,
        key_pattern: str,
        expected_count: int,
        value: Value | None = "1",
        timeout: float | None = 3600.0,
        candidate_keys: Sequence[str] | None = None,
        *,
        component: str | None = None,
    ) -> list[str]:
        return await on_thread(
            self._keys_wait(key_pattern, expected_count, value, timeout, candidate_keys, component)
        )

    def barrier(
        self,
        name: str,
        n: int,
        timeout: float | None = 3600.0,
        *,
        member: str | int | None = None,
        component: str | None = None,
    ) -> None:
        """Blocks until ``n`` members are inside. The name can be used again at once.

        ``member`` names this caller in the messages of others (default: env ``RANK``, else host and
        pid); if all members are ranks, a ``TimeoutError`` says which are missing.
        """
        self._barrier_wait(name, n, timeout, member, component)(None)

    async def barrier_async(
        self,
        name: str,
        n: int,
        timeout: float | None = 3600.0,
        *,
        member: str | int | None = None,
        component: str | None = None,
    ) -> None:
        await on_thread(self._barrier_wait(name, n, timeout, member, component))

    def watch(
        self, prefix: str = "", *, current: bool = False, component: str | None = None
    ) -> Watch:
        """Every change of keys under ``prefix`` from this call on; with ``current`` first a put for
        each key that is there."""
        scope = self._scope(component)
        return Watch(self._core.watch(scope.full(prefix), current, self.timeout), scope)

    def lease(self, ttl: float, *, keep_alive: bool = True) -> Lease:
        """A lease of ``ttl`` seconds, renewed in the background until it is revoked or the store is
        closed; pass it to ``set`` or ``multi_set``."""
        return Lease(self._core.lease(ttl, keep_alive, self.timeout), self.timeout)

    def close(self, cleanup: bool = True) -> None:
        self._core.close(cleanup)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} {self.namespace}/{self.component}>"


def default_member() -> str:
    """How this process is called where its rank is not known."""
    return _core.variable("RANK") or f"{socket.gethostname()}:{os.getpid()}"


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
