"""Weights from verl's actors to its rollout workers.

    actor_rollout_ref.rollout.checkpoint_engine.backend=tensorbus
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=tensorbus.verl

``engine_kwargs.tensorbus`` may have ``store`` (default: ``TENSORBUS_STORE``, else the first actor
serves one for its own host), ``rollout_dtype``, ``depth``, ``timeout``, ``bind``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tensorbus.frameworks import check_interface, load
from tensorbus.streams.rounds import Rounds

_base = load("tensorbus.verl", "verl.checkpoint_engine.base", "verl 0.9", "verl")
check_interface(
    "tensorbus.verl",
    _base.CheckpointEngine,
    "verl 0.9",
    {
        "prepare": [],
        "build_topology": ["actor_wg_world_size", "rollout_world_size", "metadata"],
        "init_process_group": ["kwargs"],
        "finalize": [],
        "send_weights": ["weights", "global_steps"],
        "receive_weights": ["global_steps"],
    },
)


@_base.CheckpointEngineRegistry.register("tensorbus")
class TensorBusCheckpointEngine(_base.CheckpointEngine):  # type: ignore[misc, name-defined]
    """One of verl's checkpoint engines; verl makes it, in every worker."""

    wire_format = "named_tensors"

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        store: str | None = None,
        rollout_dtype: Any = "bfloat16",
        depth: int = 2,
        timeout: float = 60.0,
        bind: str | None = None,
    ) -> None:
        self.is_master = is_master
        self._rounds = Rounds(
            bucket_size, store=store, depth=depth, dtype=rollout_dtype, timeout=timeout, bind=bind
        )

    def prepare(self) -> dict[str, Any]:
        return self._rounds.describe(self.is_master)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def side(first: int, size: int) -> dict[str, list[Any]]:
            return {
                "rank": list(range(first, first + size)),
                "senders": [actor_wg_world_size] * size,
                "workers": [metadata] * size,
            }

        return side(0, actor_wg_world_size), side(actor_wg_world_size, rollout_world_size)

    def init_process_group(self, **kwargs: Any) -> None:
        self._rounds.join(kwargs["workers"], kwargs["senders"], kwargs["rank"])

    def finalize(self) -> None:
        """What was opened serves the next round, too."""

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, Any]:  # noqa: ARG002
        return await self._rounds.send(weights)

    async def receive_weights(
        self,
        global_steps: int | None = None,  # noqa: ARG002
    ) -> AsyncIterator[tuple[str, Any]]:
        async with contextlib.aclosing(self._rounds.receive()) as buckets:
            async for bucket in buckets:
                while bucket:
                    yield bucket.pop(0)
