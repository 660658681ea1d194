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
from tensorbus.endpoint import Endpoint, Read
from tensorbus.errors import (
    AuthenticationError,
    CancelledError,
    PeerLostError,
    QueueFullError,
    UnsupportedError,
    WithdrawnError,
)
from tensorbus.layout import Layout, plan
from tensorbus.pool import empty, share_
from tensorbus.redistribution import redistribute

__version__ = "0.1.0"

__all__ = [
    "AuthenticationError",
    "CancelledError",
    "Endpoint",
    "Layout",
    "Partial",
    "PeerLostError",
    "Piece",
    "Plan",
    "QueueFullError",
    "Read",
    "Replicate",
    "Shard",
    "StridedShard",
    "UnsupportedError",
    "WithdrawnError",
    "__version__",
    "empty",
    "plan",
    "redistribute",
    "set_log_level",
    "share_",
]
