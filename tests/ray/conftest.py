"""A real Ray cluster per module: on this host, or the one that RAY_ADDRESS names (see
test_two_nodes.py). Sources run on the node "there", everything else "here"."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")

FOLDER = str(Path(__file__).parent)
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "PYTHONPATH": FOLDER,
}
HOOK = {"worker_process_setup_hook": "tensorbus.ray.setup_hook"}

Start = Callable[..., Any]


def elsewhere() -> bool:
    """Whether "there" is another node."""
    return "RAY_ADDRESS" in os.environ


@pytest.fixture(scope="module")
def cluster(scratch: Path) -> Iterator[None]:  # noqa: ARG001  it looks for what is left
    import tensorbus.ray

    folder = tempfile.mkdtemp(prefix="tbray", dir="/tmp")  # short: sockets are in it
    before = {name: os.environ.get(name) for name in SETTINGS}
    os.environ.update(SETTINGS)
    options: dict[str, Any] = {"log_to_driver": False, "runtime_env": HOOK}
    if not elsewhere():
        options |= {
            "num_cpus": 4,
            "include_dashboard": False,
            "object_store_memory": 200 << 20,
            "resources": {"here": 100, "there": 100},
            "_temp_dir": folder,
        }
    try:
        tensorbus.ray.register()
        ray.init(**options)
        yield
    finally:
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def source(cluster: None) -> Iterator[Any]:  # noqa: ARG001
    """Of the whole module, as the sinks: tests that kill use `start_worker`."""
    yield from _worker("there")


@pytest.fixture(scope="module")
def sink(cluster: None) -> Iterator[Any]:  # noqa: ARG001
    yield from _worker("here")


@pytest.fixture(scope="module")
def other_sink(cluster: None) -> Iterator[Any]:  # noqa: ARG001
    yield from _worker("here")


@pytest.fixture
def start_worker(cluster: None) -> Iterator[Start]:  # noqa: ARG001
    """Actors of one test; it may kill them."""
    workers = []

    def start(place: str, kind: str = "Worker", **options: Any) -> Any:
        workers.append(_start(place, kind, **options))
        return workers[-1]

    yield start
    for worker in workers:
        ray.kill(worker)


def _start(place: str, kind: str = "Worker", **options: Any) -> Any:
    import actors

    options = {"num_cpus": 0, "resources": {place: 0.01}, **options}
    worker = getattr(actors, kind).options(**options).remote()
    ray.get(worker.pid.remote(), timeout=60)
    return worker


def _worker(place: str) -> Iterator[Any]:
    worker = _start(place)
    try:
        yield worker
    finally:
        ray.kill(worker)


def metadata(ref: Any) -> Any:
    """What a receiver is told of the tensors of a ref, once they are made. Before that Ray does not
    lend the ref to anybody."""
    manager = ray._private.worker.global_worker.rdt_manager
    return manager.wait_for_tensor_transport_metadata(ref.hex(), 60)


def eventually(condition: Any, what: str, seconds: float = 20.0, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(pause)
