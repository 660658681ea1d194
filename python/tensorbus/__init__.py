"""Moves tensors between processes that lay them out differently."""

from tensorbus._core import (
    AuthenticationError,
    CancelledError,
    PeerLostError,
    QueueFullError,
    UnsupportedError,
    set_log_level,
)

__version__ = "0.1.0"

__all__ = [
    "AuthenticationError",
    "CancelledError",
    "PeerLostError",
    "QueueFullError",
    "UnsupportedError",
    "__version__",
    "set_log_level",
]
