"""Finds the agent of this worker from the environment that its launcher made."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tensorbus import _core
from tensorbus.client import TensorBusClient
from tensorbus.environment import number
from tensorbus.paths import command_queue_path, state_path

__all__ = ["BootstrapInfo", "bootstrap_client", "logger", "setup_ptrace"]

logger = logging.getLogger("tensorbus")


@dataclass(frozen=True)
class BootstrapInfo:
    """What ``bootstrap_client`` found."""

    agent_rank: int
    global_rank: int
    rank_offset: int | None
    device: str
    command_queue_path: str
    state_path: str
    method: str


def bootstrap_client(
    path_naming_fn: Callable[[int], tuple[str, str]] | None = None,
    connection_timeout: float = 30.0,
) -> tuple[TensorBusClient, BootstrapInfo]:
    """A client of this worker's agent.

    The agent's rank is ``AGENT_RANK``, else ``LOCAL_RANK`` (else ``RANK``) plus
    ``AGENT_RANK_OFFSET``. Its files are those that ``path_naming_fn(rank)`` names (command queue,
    state), else those of ``TensorBusClient``. Raises ``ValueError`` if the environment says nothing
    or nonsense, ``ConnectionError`` if the agent does not answer.
    """
    rank, offset, method = _agent_rank()
    if path_naming_fn is None:
        paths = command_queue_path(rank, None), state_path(rank, None)
    else:
        queue, state = path_naming_fn(rank)
        paths = command_queue_path(rank, queue), state_path(rank, state)
    global_rank = _first_number("RANK", "LOCAL_RANK")
    info = BootstrapInfo(
        agent_rank=rank,
        global_rank=rank if global_rank is None else global_rank,
        rank_offset=offset,
        device=_device(),
        command_queue_path=paths[0],
        state_path=paths[1],
        method=method,
    )
    client = TensorBusClient(rank, *paths, connection_timeout)
    logger.info("worker %d uses agent %d (%s)", info.global_rank, rank, method)
    return client, info


def setup_ptrace(pid: int | None = None) -> None:
    """Lets an agent read this process' private tensors, where the kernel (Yama) asks for consent.

    Every client does that for its own agent when it connects, so ``None`` changes nothing. A pid
    allows that process, ``-1`` any: then every process of this user may read and change this one.
    """
    if pid is None:
        return
    if pid < -1 or pid == 0:
        raise ValueError(f"pid is {pid}; give a process id, None, or -1 for any process")
    if pid == -1:
        logger.warning("every process of this user may now trace process memory (setup_ptrace(-1))")
    if not _core.allow_ptrace(pid):
        logger.debug("this kernel does not restrict ptrace; nothing to allow")


def _agent_rank() -> tuple[int, int | None, str]:
    direct = number("AGENT_RANK")
    if direct is not None:
        return direct, None, "direct"
    local = _first_number("LOCAL_RANK", "RANK")
    if local is None:
        raise ValueError(
            "none of AGENT_RANK, LOCAL_RANK and RANK is set; set AGENT_RANK to the rank of this "
            "worker's agent"
        )
    offset = number("AGENT_RANK_OFFSET") or 0
    return local + offset, offset, "offset"


def _first_number(*variables: str) -> int | None:
    return next((n for n in map(number, variables) if n is not None), None)


def _device() -> str:
    torch = sys.modules.get("torch")
    local = number("LOCAL_RANK")
    if local is not None and torch is not None and torch.cuda.is_available():
        return f"cuda:{local}"
    return "cpu"
