"""verl's manager, rollout workers and mock adapter, with the backend switched on by its name."""

import asyncio
import os
import site
from pathlib import Path

import pytest
import ray
import tiny_models
from ray.exceptions import RayActorError
from tests.checkpoint_engine.test_utils import CheckpointEngineWorkerTest
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.workers.config import CheckpointEngineConfig, HFModelConfig, RolloutConfig
from verl_workers import Replica, Trainer

pytestmark = pytest.mark.timeout(3600)
HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def cluster():
    paths = [*site.getsitepackages(), str(HERE)]  # verl's tests are called `tests`, as these are
    ray.init(
        num_cpus=8, include_dashboard=False, object_store_memory=100 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()


def group(size: int, cls: type, **arguments) -> RayWorkerGroup:
    pool = RayResourcePool(process_on_nodes=[size], use_gpu=False, max_colocate_count=1)
    made = RayClassWithInitArgs(cls=ray.remote(cls), **arguments)
    return RayWorkerGroup(pool, made, device_name="cpu", use_gpu=False)


@pytest.mark.proves("G2.2", "G2.3")
def test_replicas_are_removed_added_and_killed(tmp_path):
    model = str(tiny_models.save("llama", 0, tmp_path))
    config = CheckpointEngineConfig(
        backend="tensorbus", custom_backend_module="tensorbus.verl",
        update_weights_bucket_megabytes=1, engine_kwargs={"tensorbus": {"timeout": 120.0}},
    )  # fmt: skip
    trainers = group(2, Trainer, config=config, model=model)
    rollouts = group(
        3, CheckpointEngineWorkerTest, model_config=HFModelConfig(path=model),
        rollout_config=RolloutConfig(name="vllm", checkpoint_engine=config), check_allclose=True,
    )  # fmt: skip
    replicas = [Replica(worker) for worker in rollouts.workers]
    manager = CheckpointEngineManager(config=config, actor_wg=trainers, replicas=replicas[:2])

    def update(step: int, there: list[Replica]) -> None:
        asyncio.run(manager.update_weights(global_steps=step))
        ray.get([each.workers[0].check_weights.remote() for each in there])

    update(1, replicas[:2])
    manager.add_replicas([replicas[2]])
    update(2, replicas)
    manager.remove_replicas([replicas[0]])
    update(3, replicas[1:])
    ray.kill(replicas[1].workers[0])
    with pytest.raises(RayActorError):
        update(4, replicas[1:])
    manager.remove_replicas([replicas[1]])
    update(5, replicas[2:])
