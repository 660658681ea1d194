"""Moves tensors between processes that lay them out differently."""

from tensorbus._core import set_log_level
from tensorbus.errors import (
    AuthenticationError,
    CancelledError,
    PeerLostError,
    QueueFullError,
    UnsupportedError,
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
