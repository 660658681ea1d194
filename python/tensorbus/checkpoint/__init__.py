"""Checkpoints of ``torch.distributed.checkpoint`` (torch 2.13) in memory, without a disk.

>>> tensorbus.checkpoint.save(state_dict, "tensorbus://host:29500/job/policy")   # all trainer ranks
>>> tensorbus.checkpoint.load(state_dict, "tensorbus://host:29500/job/policy")   # any other job

torch's planner cuts and reshards as it does for files: any layout may be saved, any other loaded,
and only the bytes that a rank needs move. A checkpoint lives as long as the processes that saved
it. ``TensorBusWriter`` and ``TensorBusReader`` are for ``torch.distributed.checkpoint.save``,
``async_save`` and ``load`` themselves.
"""

from __future__ import annotations

from typing import Any

from tensorbus.frameworks import load as _load_framework

_load_framework("tensorbus.checkpoint", "torch.distributed.checkpoint", "torch 2.13", "checkpoint")

import torch.distributed as _dist  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import load as _load  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import save as _save  # noqa: E402

from tensorbus.checkpoint.reader import TensorBusReader, raise_own_error  # noqa: E402
from tensorbus.checkpoint.site import forget  # noqa: E402
from tensorbus.checkpoint.writer import TensorBusWriter  # noqa: E402

__all__ = ["TensorBusReader", "TensorBusWriter", "forget", "load", "save"]


def save(
    state_dict: dict[str, Any],
    checkpoint_id: str,
    *,
    keep: int = 1,
    timeout: float = 60.0,
    process_group: Any = None,
) -> int:
    """Saves the next version of a checkpoint, on all ranks of the process group; returns it.

    The tensors are copied and may change at once. The last ``keep`` versions can be loaded.
    """
    writer = TensorBusWriter(checkpoint_id, keep=keep, timeout=timeout)
    with raise_own_error():
        _save(
            state_dict,
            storage_writer=writer,
            process_group=process_group,
            no_dist=not _dist.is_initialized(),
        )
    writer.drop_older()
    return writer.version


def load(
    state_dict: dict[str, Any],
    checkpoint_id: str,
    *,
    version: int | None = None,
    timeout: float = 60.0,
    process_group: Any = None,
) -> int:
    """Fills the tensors of a state dict in place, on all ranks of the process group; returns the
    version.

    By default the newest, or the first if none is there yet. ``VersionGoneError`` for one that is
    not kept any more, ``TimeoutError`` if none comes, ``PeerLostError`` names ranks that have saved
    it and are gone.
    """
    reader = TensorBusReader(checkpoint_id, version=version, timeout=timeout)
    reader.find()
    with raise_own_error():
        _load(
            state_dict,
            storage_reader=reader,
            process_group=process_group,
            no_dist=not _dist.is_initialized(),
        )
    return reader.version
