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
from tensorbus._core import version as __version__
from tensorbus.agent import TensorBusAgent
from tensorbus.bootstrap import BootstrapInfo, bootstrap_client, setup_ptrace
from tensorbus.client import BatchHandler, TensorBusClient
from tensorbus.cpp import cmake_dir, include_dir
from tensorbus.endpoint import Endpoint, Read
from tensorbus.errors import (
    AuthenticationError,
    BusyError,
    CancelledError,
    EndOfStreamError,
    PeerLostError,
    QueueFullError,
    UnsupportedError,
    VersionGoneError,
    WithdrawnError,
)
from tensorbus.handles import PullHandle, SendHandle
from tensorbus.layout import Layout, plan
from tensorbus.link import LastSend, Link, PullStats, Update
from tensorbus.observe import stats, trace
from tensorbus.parts import Part, Sharded, fused
from tensorbus.pool import empty, share_
from tensorbus.redistribution import redistribute
from tensorbus.transfer import Progress, Transfer, TransferResult

__all__ = [
    "AuthenticationError",
    "BatchHandler",
    "BootstrapInfo",
    "BusyError",
    "CancelledError",
    "EndOfStreamError",
    "Endpoint",
    "LastSend",
    "Layout",
    "Link",
    "Part",
    "Partial",
    "PeerLostError",
    "Piece",
    "Plan",
    "Progress",
    "PullHandle",
    "PullStats",
    "QueueFullError",
    "Read",
    "Replicate",
    "SendHandle",
    "Shard",
    "Sharded",
    "StridedShard",
    "TensorBusAgent",
    "TensorBusClient",
    "Transfer",
    "TransferResult",
    "UnsupportedError",
    "Update",
    "VersionGoneError",
    "WithdrawnError",
    "__version__",
    "bootstrap_client",
    "cmake_dir",
    "empty",
    "fused",
    "include_dir",
    "plan",
    "redistribute",
    "set_log_level",
    "setup_ptrace",
    "share_",
    "stats",
    "trace",
]
