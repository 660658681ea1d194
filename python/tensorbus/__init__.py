"""Moves tensors between processes that lay them out differently."""

from tensorbus._core import (
    Partial,
    Piece,
    Plan,
    Replicate,
    Shard,
    StridedShard,
    set_log_level,
)
from tensorbus.errors import (
    AuthenticationError,
    CancelledError,
    PeerLostError,
    QueueFullError,
    UnsupportedError,
)
from tensorbus.layout import Layout, plan
from tensorbus.redistribution import redistribute

__version__ = "0.1.0"

__all__ = [
    "AuthenticationError",
    "CancelledError",
    "Layout",
    "Partial",
    "PeerLostError",
    "Piece",
    "Plan",
    "QueueFullError",
    "Replicate",
    "Shard",
    "StridedShard",
    "UnsupportedError",
    "__version__",
    "plan",
    "redistribute",
    "set_log_level",
]
