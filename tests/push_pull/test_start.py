"""Jobs that cannot begin, or lose their scheduler: everybody is told why.

Each of these mostly waits, for leases to lapse and patience to end, so they run at the same time.
"""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import roles
from nodes import Job
from processes import eventually

NewJob = Callable[..., Job]

pytestmark = pytest.mark.timeout(120)


def a_rank_is_taken_once(new_job: NewJob) -> None:
    cluster = new_job(2, 1, environment={"TENSORBUS_INIT_TIMEOUT": "60"})
    twins = [cluster.workers[1], cluster.add("worker", 1)]
    for node in [cluster.scheduler, *cluster.servers, *twins]:
        node.start(roles.init)
    eventually(lambda: any(twin.done() for twin in twins), "one of the twins to give up", 40)
    second, first = sorted(twins, key=lambda twin: twin.done(), reverse=True)
    error = second.error()
    assert "BadArgument" in error.kinds
    assert "two nodes of rank 1 among the workers" in error.message
    # The job goes on without it.
    cluster.workers[0](roles.init)
    for node in [cluster.scheduler, *cluster.servers, first]:
        node.result()


def a_rank_is_free_when_its_claimant_died(new_job: NewJob) -> None:
    cluster = new_job(1, 1)
    cluster.scheduler.start(roles.init)
    store = cluster.store()
    store.set(cluster.place(store, cluster.workers[0]), "?somebody")
    for node in [*cluster.servers, *cluster.workers]:
        node.start(roles.init)
    for node in cluster.all:
        node.result()


def init_names_who_is_missing(new_job: NewJob) -> None:
    """Whoever loses patience first tells the others."""
    cluster = new_job(2, 2, environment={"TENSORBUS_INIT_TIMEOUT": "300"})
    nodes = [cluster.scheduler, cluster.servers[1]]
    for node in nodes:
        node.start(roles.init)
    cluster.await_members(*nodes)
    impatient = cluster.add("worker", 0, TENSORBUS_INIT_TIMEOUT="8")
    impatient(roles.group)  # so that it has imported what it needs
    for node in [impatient.start(roles.init), *nodes]:
        error = node.error()
        assert "TimeoutError" in error.kinds
        assert "missing: server 0, worker 1" in error.message


def a_scheduler_names_who_is_missing(new_job: NewJob) -> None:
    cluster = new_job(1, 1, environment={"TENSORBUS_INIT_TIMEOUT": "300"})
    impatient = cluster.add("scheduler", 0, TENSORBUS_INIT_TIMEOUT="8")
    nodes = [impatient, cluster.workers[0]]
    for node in nodes:
        node(roles.group)  # so that it has imported what it needs
    for node in nodes:
        node.start(roles.init)
    for node in nodes:
        error = node.error()
        assert "TimeoutError" in error.kinds
        assert "missing: server 0" in error.message


def whoever_dies_while_the_job_starts_is_named(new_job: NewJob) -> None:
    cluster = new_job(2, 1)
    nodes = [cluster.scheduler, *cluster.servers, cluster.workers[0]]
    for node in nodes:
        node.start(roles.init)
    cluster.await_members(*nodes)
    nodes.pop().signal(signal.SIGKILL)
    for node in nodes:
        error = node.error()
        assert "PeerLostError" in error.kinds
        assert error.message == "worker 0 was lost while the job was starting"


def without_a_scheduler_there_is_no_start(new_job: NewJob) -> None:
    cluster = new_job(1, 1)
    for node in (cluster.scheduler, *cluster.servers):
        node.start(roles.init)
    cluster.await_members(cluster.scheduler, *cluster.servers)
    cluster.scheduler.signal(signal.SIGKILL)
    # Both one that had found it and one that comes later end, and say who is not there.
    late = cluster.add("worker", 0, TENSORBUS_INIT_TIMEOUT="3")
    for node in (late.start(roles.init), *cluster.servers):
        error = node.error()
        assert "ConnectionError" in error.kinds
        assert cluster.common["DMLC_PS_ROOT_PORT"] in error.message


def traffic_goes_on_without_the_scheduler(new_job: NewJob) -> None:
    cluster = new_job(1, 1).init()
    worker, server = cluster.workers[0], cluster.servers[0]
    cluster.scheduler.signal(signal.SIGKILL)
    for _ in range(3):
        worker.start(roles.echo)
        server(roles.serve, 1)
        worker.result()
    worker.start(roles.call, "barrier", True, True)
    server.start(roles.stop)
    for node in (worker, server):
        error = node.error()
        assert "ConnectionError" in error.kinds
        assert "the scheduler at" in error.message


def barriers_and_stop_do_not_wait_for_the_dead(new_job: NewJob) -> None:
    cluster = new_job(2, 1).init()
    cluster.workers[0].start(roles.call, "barrier", False, True)
    time.sleep(0.2)
    cluster.workers[1].signal(signal.SIGKILL)
    error = cluster.workers[0].error(20)
    assert "PeerLostError" in error.kinds
    assert "worker 1 is gone" in error.message
    for node in (cluster.scheduler, cluster.servers[0], cluster.workers[0]):
        node.start(roles.stop)
    for node in (cluster.scheduler, cluster.servers[0], cluster.workers[0]):
        node.result()


def a_scheduler_that_stood_still_loses_nobody(new_job: NewJob) -> None:
    """For longer than leases live. The next job begins as soon as it has left this one."""
    cluster = new_job(2, 1).init()
    cluster.scheduler.signal(signal.SIGSTOP)
    time.sleep(8)
    cluster.scheduler.signal(signal.SIGCONT)
    members = [*cluster.servers, *cluster.workers]
    for node in members:
        node.start(roles.call, "barrier", True, True)
    for node in members:
        node.result()
    for node in cluster.all:
        node.start(roles.stop)
    cluster.scheduler.result()
    cluster.scheduler.start(roles.init)
    for node in members:
        node.result()
        node.start(roles.init)
    for node in cluster.all:
        node.result()


def stop_names_who_has_not(new_job: NewJob) -> None:
    cluster = new_job(1, 1).init()
    cluster.workers[0].start(roles.stop, 2.0)
    cluster.scheduler.start(roles.stop)
    error = cluster.workers[0].error()
    assert "TimeoutError" in error.kinds
    assert "server 0" in error.message


CASES = [
    a_rank_is_taken_once,
    a_rank_is_free_when_its_claimant_died,
    init_names_who_is_missing,
    a_scheduler_names_who_is_missing,
    whoever_dies_while_the_job_starts_is_named,
    without_a_scheduler_there_is_no_start,
    traffic_goes_on_without_the_scheduler,
    barriers_and_stop_do_not_wait_for_the_dead,
    a_scheduler_that_stood_still_loses_nobody,
    stop_names_who_has_not,
]


@pytest.fixture(scope="module")
def running(nursery: None) -> Iterator[dict[str, Future[None]]]:  # noqa: ARG001
    jobs: list[Job] = []

    def new_job(workers: int, servers: int, **options: dict[str, str]) -> Job:
        jobs.append(Job(workers, servers, **options))  # type: ignore[arg-type]
        return jobs[-1]

    try:
        with ThreadPoolExecutor(len(CASES)) as pool:
            yield {case.__name__: pool.submit(case, new_job) for case in CASES}
    finally:
        for job in jobs:
            job.kill()


@pytest.mark.proves("P8", "P10")
@pytest.mark.parametrize("name", [case.__name__ for case in CASES])
def test_everybody_is_told(running: dict[str, Future[None]], name: str) -> None:
    running[name].result(100)
