"""Who may connect to the port on which a push-pull node listens for other hosts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import roles
from nodes import Job
from two_hosts import ADDRESSES, TwoHosts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")

STRANGERS = ("10.78.0.3", "10.78.0.4")


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    hosts = TwoHosts()
    yield hosts
    hosts.close()


def test_only_hosts_of_the_other_role_can_connect(
    new_job: Callable[..., Job], hosts: TwoHosts
) -> None:
    job = new_job(1, 1, hosts=hosts).init()
    nodes = (job.workers[0], job.servers[0])  # on the first host and the second
    for host, node in enumerate(nodes):
        (port,) = hosts.listening(host, node.pid)
        other = 1 - host
        assert hosts.call(ADDRESSES[other], host, port, 20) == "connected"
        hosts.add_address(other, STRANGERS[other])
        assert hosts.call(STRANGERS[other], host, port, 0.5) == "timed out"
        assert hosts.call(ADDRESSES[other], host, port, 20) == "connected"
    # The job goes on, whoever has called.
    job.workers[0].start(roles.echo)
    job.servers[0](roles.serve, 1)
    job.workers[0].result()
