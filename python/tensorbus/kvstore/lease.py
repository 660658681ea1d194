"""Keys that vanish with their holder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorbus import _core

if TYPE_CHECKING:
    from typing_extensions import Self


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
