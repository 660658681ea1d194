"""Weights from the policy workers of NeMo-RL to its generation workers.

    policy.generation.refit_transport: "tensorbus.nemo_rl:TensorBusCheckpointEngine"

``refit_cfg["tensorbus.nemo_rl:TensorBusCheckpointEngine"]`` has ``store`` (default:
``TENSORBUS_STORE``) and may have ``dtype``, ``depth``, ``timeout``, ``bind``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tensorbus.environment import store_url
from tensorbus.frameworks import check_interface, load
from tensorbus.streams.rounds import Rounds

_base = load(
    "tensorbus.nemo_rl",
    "nemo_rl.utils.checkpoint_engines.base",
    "a NeMo-RL that has nemo_rl.utils.checkpoint_engines (August 2026 or later)",
)
_GROUP = ["train_world_size", "rollout_world_size", "metadata"]
check_interface(
    "tensorbus.nemo_rl",
    _base.CheckpointEngine,
    "the NeMo-RL of August 2026",
    {
        "prepare": [],
        "init_policy_process_group": ["worker_rank", *_GROUP],
        "init_rollout_process_group": ["rollout_rank", *_GROUP],
        "send_weights": ["weights"],
        "receive_weight_batches": [],
        "finalize": [],
    },
)


class TensorBusCheckpointEngine(_base.CheckpointEngine):  # type: ignore[misc, name-defined]
    """One of NeMo-RL's checkpoint engines; NeMo-RL makes it, in every worker."""

    def __init__(
        self,
        bucket_size: int,
        store: str | None = None,
        dtype: Any = None,
        depth: int = 2,
        timeout: float = 60.0,
        bind: str | None = None,
    ) -> None:
        # Nobody is told to be the first before all have said where the store is.
        self._rounds = Rounds(
            bucket_size,
            store=store_url(store),
            depth=depth,
            dtype=dtype,
            timeout=timeout,
            bind=bind,
        )

    def prepare(self) -> dict[str, Any]:
        return self._rounds.describe(is_master=True)

    def init_policy_process_group(
        self,
        *,
        worker_rank: int,
        train_world_size: int,
        rollout_world_size: int,
        metadata: list[Any],
    ) -> None:
        self._join(worker_rank, train_world_size, rollout_world_size, metadata)

    def init_rollout_process_group(
        self,
        *,
        rollout_rank: int,
        train_world_size: int,
        rollout_world_size: int,
        metadata: list[Any],
    ) -> None:
        rank = train_world_size + rollout_rank
        self._join(rank, train_world_size, rollout_world_size, metadata)

    def _join(self, rank: int, senders: int, receivers: int, metadata: list[Any]) -> None:
        if len(metadata) != senders + receivers:
            raise ValueError(
                f"{len(metadata)} workers have said who they are, {senders} + {receivers} are there"
            )
        self._rounds.join(metadata, senders, rank)

    async def send_weights(self, weights: Any) -> None:
        await self._rounds.send(weights)

    async def receive_weight_batches(self) -> AsyncIterator[list[tuple[str, Any]]]:
        async with contextlib.aclosing(self._rounds.receive()) as buckets:
            async for bucket in buckets:
                if bucket:
                    yield bucket

    def finalize(self) -> None:
        """What was opened serves the next round, too."""
