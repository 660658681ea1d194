"""Workers of verl, with verl's own rollout workers and adapter; only the trainer is ours."""

import torch
from tests.checkpoint_engine.test_utils import MockReplica
from transformers import AutoModelForCausalLM
from verl.checkpoint_engine import CheckpointEngineRegistry
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.import_utils import import_external_libs

BUCKET_BYTES = 200_000


class Trainer(Worker):
    """verl's own needs a GPU."""

    def __init__(self, config, model):
        super().__init__()
        import_external_libs(config.custom_backend_module)
        options = dict(config.engine_kwargs.get(config.backend, {}))
        if self.rank == 0:
            options["is_master"] = True
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend, bucket_size=BUCKET_BYTES, **options
        )
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):  # noqa: ARG002
        weights = iter(self.model.state_dict().items())
        return await self.checkpoint_engine.send_weights(weights, global_steps=global_steps)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *arguments, **named):
        return getattr(self.checkpoint_engine, method)(*arguments, **named)


class Replica(MockReplica):
    """A rollout worker without a server, which has nothing to abort or to resume."""

    def __init__(self, worker):
        self.workers = [worker]

    async def abort_all_requests(self, **_):
        pass

    async def release_kv_cache(self):
        pass

    async def resume_kv_cache(self):
        pass

    async def resume_generation(self):
        pass
