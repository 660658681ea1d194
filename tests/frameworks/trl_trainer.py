"""TRL's trainer, with a worker that makes no rollouts: what matters is how weights leave it."""

import queue
from pathlib import Path
from typing import Any

from datasets import Dataset
from tensorbus.trl import WeightTransfer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer


class NoRollouts:
    """A ``RolloutWorkerProtocol`` of TRL."""

    def __init__(self) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.versions: list[int] = []

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def update_model_version(self, model_version: int) -> None:
        self.versions.append(model_version)

    def check_health(self, stale_after_s: float) -> None:
        pass


def synchronize(model: Path, server: str, transfer: WeightTransfer, folder: Path) -> list[int]:
    """What TRL does when training begins; the versions that it has told its worker."""
    # A figure for its log, for which it asks a GPU.
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: 1.0
    arguments = AsyncGRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, dtype="float32", report_to=[],
        max_steps=1, vllm_server_base_url=server,
    )  # fmt: skip
    worker = NoRollouts()
    trainer = AsyncGRPOTrainer(
        model=str(model), args=arguments, reward_funcs=lambda **_: [0.0], rollout_worker=worker,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "t1"}]]}),
        weight_transfer=transfer,
    )  # fmt: skip
    trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    transfer.destroy()
    return worker.versions
