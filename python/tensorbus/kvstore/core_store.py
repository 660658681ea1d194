"""The one implementation of ``KVStore``, on the C++ core; every backend is reached through it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tensorbus import _core
from tensorbus.kvstore.base import KVStore, Value
from tensorbus.kvstore.lease import Lease
from tensorbus.kvstore.waiting import on_thread
from tensorbus.kvstore.watch import Watch

if TYPE_CHECKING:
    from typing_extensions import Self


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
        handle = lease._lease if lease is not None else None
        self._core.set(self._scope(component), key, value, self.timeout, handle)

    def multi_set(
        self,
        values: Mapping[str, Value],
        *,
        component: str | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Sets many keys in one request; others see all of them or none."""
        handle = lease._lease if lease is not None else None
        self._core.multi_set(self._scope(component), list(values.items()), self.timeout, handle)

    def get(self, key: str, *, component: str | None = None) -> bytes | None:
        return self._core.get(self._scope(component), key, self.timeout)

    def multi_get(self, keys: Iterable[str], *, component: str | None = None) -> list[bytes | None]:
        """The values of many keys at one moment, in order; None for absent ones."""
        return self._core.multi_get(self._scope(component), list(keys), self.timeout)

    def exists(self, key: str, *, component: str | None = None) -> bool:
        return self._core.exists(self._scope(component), key, self.timeout)

    def delete(self, key: str, *, component: str | None = None) -> bool:
        return self._core.erase(self._scope(component), key, self.timeout)

    def set_bytes(self, key: str, data: bytes, *, component: str | None = None) -> None:
        self.set(key, data, component=component)

    def get_bytes(self, key: str, *, component: str | None = None) -> bytes | None:
        return self.get(key, component=component)

    def add(self, key: str, n: int, *, component: str | None = None) -> int:
        """Adds to a decimal number (an absent key counts as 0); the sum."""
        return self._core.add(self._scope(component), key, n, self.timeout)

    def compare_and_set(
        self, key: str, expected: Value | None, desired: Value, *, component: str | None = None
    ) -> tuple[bool, bytes | None]:
        """Sets the key if it holds ``expected`` (None: if it is absent); whether it did, and the
        value that the key holds now."""
        return self._core.compare_and_set(
            self._scope(component), key, expected, desired, self.timeout
        )

    def list_keys(self, prefix: str = "", *, component: str | None = None) -> list[str]:
        """The keys that start with ``prefix``, sorted."""
        return self._core.list_keys(self._scope(component), prefix, self.timeout)

    # A wait is a function of what can cancel it; the two public forms run it.

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
        candidates = list(candidate_keys or ())
        return lambda stop: self._core.wait_for_keys(
            scope, key_pattern, expected_count, value, candidates, timeout, stop
        )

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
        scope = self._scope(component)
        who = default_member() if member is None else str(member)
        return lambda stop: self._core.barrier(scope, name, n, who, timeout, stop)

    def wait_for_key(
        self, key: str, timeout: float | None = 3600.0, *, component: str | None = None
    ) -> bytes:
        return self._core.wait_for_key(self._scope(component), key, timeout)

    async def wait_for_key_async(
        self, key: str, timeout: float | None = 3600.0, *, component: str | None = None
    ) -> bytes:
        scope = self._scope(component)
        return await on_thread(lambda stop: self._core.wait_for_key(scope, key, timeout, stop))

    def wait_for_value(
        self,
        key: str,
        expected: Value,
        timeout: float | None = 3600.0,
        *,
        component: str | None = None,
    ) -> bytes:
        return self._core.wait_for_value(self._scope(component), key, expected, timeout)

    async def wait_for_value_async(
        self,
        key: str,
        expected: Value,
        timeout: float | None = 3600.0,
        *,
        component: str | None = None,
    ) -> bytes:
        scope = self._scope(component)
        return await on_thread(
            lambda stop: self._core.wait_for_value(scope, key, expected, timeout, stop)
        )

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
        return Watch(self._core.watch(scope, prefix, current, self.timeout), scope)

    def lease(self, ttl: float, *, keep_alive: bool = True) -> Lease:
        """A lease of ``ttl`` seconds, renewed in the background until it is revoked or the store is
        closed; pass it to ``set`` or ``multi_set``."""
        return Lease(self._core.lease(ttl, keep_alive, self.timeout), self.timeout)

    def shared_secret(self, key: str, *, component: str | None = None) -> bytes:
        """A secret that everybody who may use this store knows; whoever asks first makes it."""
        return _core.shared_secret(self._core, self._scope(component), key, self.timeout)

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
