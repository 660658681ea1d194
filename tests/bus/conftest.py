"""A bus for each test: a namespace of its own, agents as daemons or on threads."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from buses import Bus
from processes import Start
from tensorbus.kvstore import StoreServer


@pytest.fixture(scope="session", autouse=True)
def torch_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """DTensors make torch's compiler create its cache."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))


def make_bus(kind: str, store: StoreServer, unique: str, start: Start, folder: Path) -> Bus:
    return Bus(kind, store.url, f"bus-{unique}", start, folder)


@pytest.fixture(params=["embedded", "daemon"])
def bus(
    request: pytest.FixtureRequest,
    store_server: StoreServer,
    unique: str,
    start_program: Start,
    tmp_path: Path,
) -> Iterator[Bus]:
    bus = make_bus(request.param, store_server, unique, start_program, tmp_path)
    yield bus
    bus.close()


@pytest.fixture
def daemons(
    store_server: StoreServer, unique: str, start_program: Start, tmp_path: Path
) -> Iterator[Bus]:
    bus = make_bus("daemon", store_server, unique, start_program, tmp_path)
    yield bus
    bus.close()


@pytest.fixture
def threads(
    store_server: StoreServer, unique: str, start_program: Start, tmp_path: Path
) -> Iterator[Bus]:
    bus = make_bus("embedded", store_server, unique, start_program, tmp_path)
    yield bus
    bus.close()
