"""verl's own manager, workers and registry, and tests that were written for a stand-in of those."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import tiny_models
import verl_job
from processes import eventually
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry

FOLDER = Path(__file__).parent
SETTINGS = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": str(FOLDER),
}

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def cluster(frameworks_folder: None) -> Iterator[None]:  # noqa: ARG001
    folder = tempfile.mkdtemp(prefix="tbverl", dir="/tmp")  # short: sockets are in it
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        try:
            ray.init(
                num_cpus=8, include_dashboard=False, object_store_memory=200 << 20,
                _temp_dir=folder,
            )  # fmt: skip
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def check(replicas: list[verl_job.MockReplica]) -> None:
    """verl compares what its adapters got with the model on the disk, and forgets it."""
    ray.get([each.workers[0].check_weights.remote() for each in replicas])


@pytest.mark.proves("G2.2", "G2.3")
@pytest.mark.usefixtures("cluster")
def test_verls_manager_adds_removes_and_loses_replicas(tmp_path):
    model = tiny_models.save("llama", 0, tmp_path)
    config = verl_job.configuration()
    trainers = verl_job.trainers(2, model, config)
    first, *others = verl_job.replicas(4, model, config)
    manager = CheckpointEngineManager(config=config, actor_wg=trainers, replicas=others[:2])

    def update(step: int) -> None:
        metrics = manager.update_weights(global_steps=step)
        assert metrics["tensorbus/buckets"] > 2
        check(manager.replicas)

    update(1)
    manager.add_replicas([first, others[2]])
    update(2)
    manager.remove_replicas([others[0]])
    update(3)
    dying = others[1].workers[0]
    member = ray.get(dying.member.remote())
    ray.get(dying.die_in_the_next_update.remote())
    with pytest.raises(ray.exceptions.RayError):
        manager.update_weights(global_steps=4)
    eventually(lambda: all(trainers.failure()), "the trainers to give up", 120.0)
    for failure in trainers.failure():
        assert failure.startswith("PeerLostError: "), failure
        assert member in failure
    manager.remove_replicas([others[1]])
    update(5)
    manager.add_replicas([others[0]])
    update(6)


def test_verls_own_registry_has_it():
    import tensorbus.verl

    assert CheckpointEngineRegistry.get("tensorbus") is tensorbus.verl.TensorBusCheckpointEngine
