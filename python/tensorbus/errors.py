"""The exceptions that Python does not have.

Everything else raises what Python users expect: ``ValueError`` for a bad argument,
``TimeoutError`` at a deadline, ``ConnectionError`` when the other process cannot be reached,
``RuntimeError`` for the rest. Every message names who, what and why.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    _PosixBusyError = object
else:
    try:
        from posix_ipc import BusyError as _PosixBusyError
    except ImportError:
        _PosixBusyError = object


class UnsupportedError(RuntimeError):
    """This backend or build cannot do what was asked; the message names one that can."""


class AuthenticationError(ConnectionError):
    """The other side refused our credentials, or could not prove its own."""


class PeerLostError(RuntimeError):
    """A process that the call needed is gone; the message names it.

    Of a transfer: ``ranks`` are those that are gone, and after a send ``readers`` says of each rank
    that took part ``"read"``, ``"failed"`` or ``"lost"``.
    """

    ranks: tuple[int, ...] = ()
    readers: Mapping[int, str] = MappingProxyType({})
    version: int = 0  # of a state dict
    stale: bool = False  # a sender is gone: all of them have to register again


class QueueFullError(RuntimeError):
    """A bounded queue stayed full until the deadline."""


class WithdrawnError(RuntimeError):
    """The owner took its tensors back; ask for what it offers next."""


class VersionGoneError(RuntimeError):
    """The version that was asked for was recycled or never published; ask for a newer one."""


class EndOfStreamError(RuntimeError):
    """Whoever published has closed: nothing newer comes. ``version`` is its last."""

    version: int = 0


class CancelledError(RuntimeError):
    """The call was ended by ``close()`` or a cancellation, not by its own fault."""


class BusyError(TimeoutError, _PosixBusyError):
    """``acquire`` waited as long as it was told; nothing was cancelled. Whoever catches
    ``posix_ipc.BusyError`` catches it."""
