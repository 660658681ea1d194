"""The store's interface: what every backend offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tensorbus.kvstore.lease import Lease

# What can be stored: text as UTF-8, anything bytes-like as it is.
Value = str | bytes | bytearray | memoryview


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
