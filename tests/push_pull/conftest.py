"""Jobs for the tests of push-pull, on one host and between two."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nodes import Job, fork_server
from two_hosts import TwoHosts

NewJob = Callable[..., Job]


@pytest.fixture(scope="session")
def nursery(scratch: Path) -> Iterator[None]:  # noqa: ARG001
    with fork_server():
        yield


@pytest.fixture
def new_job(nursery: None) -> Iterator[NewJob]:  # noqa: ARG001
    """Makes jobs of processes that end with the test, however it ends."""
    jobs: list[Job] = []

    def make(workers: int, servers: int, **options: object) -> Job:
        jobs.append(Job(workers, servers, **options))  # type: ignore[arg-type]
        return jobs[-1]

    yield make
    for job in jobs:
        job.kill()


@pytest.fixture(params=["shm", "ucx"])
def transport(request: pytest.FixtureRequest) -> str:
    """Shared memory; UCX between two network namespaces."""
    if request.param == "ucx" and os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    return str(request.param)


@pytest.fixture
def job(new_job: NewJob, transport: str) -> Iterator[NewJob]:
    """Makes jobs that have begun, on either transport."""
    hosts = TwoHosts() if transport == "ucx" else None
    try:
        yield lambda workers, servers, **options: new_job(
            workers, servers, hosts=hosts, **options
        ).init()
    finally:
        if hosts is not None:
            hosts.close()
