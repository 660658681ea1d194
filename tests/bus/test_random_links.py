"""Random state dicts over links through real processes, against torch, bit for bit.

Cases mix embedded ranks and ranks with daemons, plain tensors, parts, shards and DTensors on
either side, views, types, shelves of a narrower type, subsets; versions are sent and received, or
published and pulled, by all ranks of a side together or by each for itself.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster
from tensorbus.kvstore import StoreServer


@pytest.fixture(scope="module")
def cluster(
    store_server: StoreServer, tmp_path_factory: pytest.TempPathFactory, scratch: Path
) -> Iterator[Cluster]:
    del scratch  # ends after this
    cluster = Cluster(tmp_path_factory.mktemp("agents"), store_server.url)
    yield cluster
    cluster.close()


@pytest.mark.proves("L1.1", "L1.2", "L1.3", "L1.4", "L2.1", "L2.2", "L2.3", "L2.4", "L2.5")
@pytest.mark.parametrize("seed", range(40))
def test_every_rank_gets_what_torch_would(cluster: Cluster, seed: int) -> None:
    cluster.run_link(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1360))
def test_many_more(cluster: Cluster, seed: int) -> None:
    cluster.run_link(seed)
