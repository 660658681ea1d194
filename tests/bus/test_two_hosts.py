"""The bus between two hosts: network namespaces, joined by a veth pair."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, scratch: Path) -> Iterator[Cluster]:
    del scratch  # ends after this
    cluster = Cluster(tmp_path_factory.mktemp("agents"), None)
    yield cluster
    cluster.close()


@pytest.mark.proves("B4.3", "B4.4", "B5.8")
@pytest.mark.parametrize("seed", range(100, 115))
def test_every_rank_holds_what_torch_would(cluster: Cluster, seed: int) -> None:
    cluster.run(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2000, 2100))
def test_many_more(cluster: Cluster, seed: int) -> None:
    cluster.run(seed)
