"""Random pairs of layouts through real processes, against torch, bit for bit.

Cases mix embedded ranks and ranks with daemons, pooled and private tensors, views, several pairs in
a batch, types, both directions, queued rounds.
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


@pytest.mark.proves("B3.1", "B3.6", "B3.10", "B3.11", "B4.1", "B4.2", "B4.3")
@pytest.mark.proves("B5.1", "B5.5", "B5.6", "B5.7", "B5.8", "B5.9")
@pytest.mark.parametrize("seed", range(40))
def test_every_rank_holds_what_torch_would(cluster: Cluster, seed: int) -> None:
    cluster.run(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1360))
def test_many_more(cluster: Cluster, seed: int) -> None:
    cluster.run(seed)
