"""The signatures of NeMo-RL."""

from abc import ABC, abstractmethod


class CheckpointEngine(ABC):
    cleanup_after_load = True

    @abstractmethod
    def prepare(self): ...

    @abstractmethod
    def init_policy_process_group(
        self, *, worker_rank, train_world_size, rollout_world_size, metadata
    ): ...

    @abstractmethod
    def init_rollout_process_group(
        self, *, rollout_rank, train_world_size, rollout_world_size, metadata
    ): ...

    def finalize(self): ...  # noqa: B027

    @abstractmethod
    async def send_weights(self, weights): ...

    @abstractmethod
    def receive_weight_batches(self): ...
