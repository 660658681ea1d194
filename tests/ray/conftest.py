"""A real Ray cluster per module: on this host, or the one that RAY_ADDRESS names (see
test_two_nodes.py). Sources run on the node "there", everything else "here"."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import SETTINGS, elsewhere

try:
    import ray
except ImportError:
    ray = None

HOOK = {"worker_process_setup_hook": "tensorbus.ray.setup_hook"}

Start = Callable[..., Any]


class WithoutRay(pytest.Module):
    def collect(self) -> Any:
        pytest.skip("Ray is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    return WithoutRay.from_parent(parent, path=module_path) if ray is None else None


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
