"""Workers of a job of verl, on CPUs: its own, and trainers that have whole weights.

The rollout workers are those of verl's own tests, which its wheel has, and whose adapter keeps what
it gets in place of a server.
"""

import os
import signal
from pathlib import Path
from typing import Any

import ray
import torch
from tests.checkpoint_engine.test_utils import CheckpointEngineWorkerTest, MockReplica
from transformers import AutoModelForCausalLM
from verl.checkpoint_engine import CheckpointEngineRegistry
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, HFModelConfig, RolloutConfig

BUCKET_BYTES = 50_000  # many of them, for a model this small


class Trainer(Worker):
    """As verl's ``TrainingWorker``, which needs a GPU, is towards checkpoint engines."""

    def __init__(self, model: str, config: CheckpointEngineConfig) -> None:
        super().__init__()
        import_external_libs(config.custom_backend_module)
        options = dict(config.engine_kwargs[config.backend], is_master=self.rank == 0)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend, bucket_size=BUCKET_BYTES, **options
        )
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._failure = ""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:  # noqa: ARG002
        self._failure = ""
        try:
            return await self.checkpoint_engine.send_weights(
                iter(self._model.state_dict().items()), global_steps=global_steps
            )
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            raise

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self.checkpoint_engine, method)(*arguments, **named)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def failure(self) -> str:
        """Of the last update."""
        return self._failure


class RolloutWorker(CheckpointEngineWorkerTest):  # type: ignore[misc]
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def member(self) -> str:
        return str(self.checkpoint_engine.prepare()["member"])

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def die_in_the_next_update(self) -> None:
        async def die(weights: Any, **_: Any) -> None:
            async for _ in weights:
                os.kill(os.getpid(), signal.SIGKILL)

        self.server_adapter.update_weights = die


def group(size: int, cls: type, **arguments: Any) -> RayWorkerGroup:
    return RayWorkerGroup(
        resource_pool=RayResourcePool(
            process_on_nodes=[size], use_gpu=False, max_colocate_count=1
        ),
        ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(cls), **arguments),
        device_name="cpu",
        use_gpu=False,
    )  # fmt: skip


def configuration() -> CheckpointEngineConfig:
    return CheckpointEngineConfig(
        backend="tensorbus", custom_backend_module="tensorbus.verl",
        update_weights_bucket_megabytes=1, engine_kwargs={"tensorbus": {"timeout": 120.0}},
    )  # fmt: skip


def trainers(size: int, model: Path, config: CheckpointEngineConfig) -> RayWorkerGroup:
    return group(size, Trainer, model=str(model), config=config)


def replicas(size: int, model: Path, config: CheckpointEngineConfig) -> list[MockReplica]:
    """Each with one worker."""
    rollout = RolloutConfig(name="vllm", tensor_model_parallel_size=1, checkpoint_engine=config)
    described = HFModelConfig(path=str(model), load_tokenizer=False)
    workers = group(size, RolloutWorker, rollout_config=rollout, model_config=described)
    made = []
    for rank, worker in enumerate(workers.workers):
        made.append(MockReplica(rank, rollout, described))
        made[-1].workers = [worker]
    return made
