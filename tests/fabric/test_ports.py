"""`ports=`: where a process listens for other hosts."""

import os
import re
import subprocess

import pytest
from tensorbus import Endpoint, TensorBusClient
from tensorbus.kvstore import StoreServer

HERE = "127.0.0.1"
PORTS = (7330, 7339)


def listening() -> set[int]:
    """Ports of this process."""
    rows = subprocess.run(
        ["ss", "--no-header", "-ltnp"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    mine = [row for row in rows if re.search(rf"\bpid={os.getpid()}\b", row)]
    return {int(row.split()[3].rpartition(":")[2]) for row in mine}


def test_an_endpoint_listens_at_one_of_its_ports():
    before = listening()
    with Endpoint(name="ports", bind=HERE, ports=PORTS):
        (port,) = listening() - before
        assert PORTS[0] <= port <= PORTS[1]


def test_an_embedded_agent_listens_at_one_of_its_ports(store_server: StoreServer, unique: str):
    before = listening()
    with TensorBusClient.embedded(store_server.url, 1, unique, bind=HERE, ports=PORTS):
        (port,) = listening() - before
        assert PORTS[0] <= port <= PORTS[1]


@pytest.mark.parametrize("kind", ["endpoint", "embedded"])
def test_ports_that_are_all_taken_are_named(kind: str, store_server: StoreServer, unique: str):
    one = (PORTS[1], PORTS[1])

    def make(rank: int):
        if kind == "endpoint":
            return Endpoint(name=f"taken {rank}", bind=HERE, ports=one)
        return TensorBusClient.embedded(store_server.url, rank, unique, bind=HERE, ports=one)

    with make(1), pytest.raises(Exception, match=f"at one of the ports {one[0]}-{one[1]}"):
        make(2)
