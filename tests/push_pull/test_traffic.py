"""Any tensor, any number of nodes, for a long time."""

import gc
import time

import numpy as np
import pytest
import roles
import torch
from nodes import Job
from tensorbus import fserver


def run_at_random(cluster: Job, requests: int, depth: int) -> None:
    groups = int(cluster.common["DMLC_NUM_WORKER"])
    for server in cluster.servers:
        server.start(roles.serve_each, requests * groups)
    for seed, worker in enumerate(cluster.workers):
        worker.start(roles.ask_at_random, requests, seed, depth)
    for worker in cluster.workers:
        assert worker.result() == 0, "requests are left"
    for server in cluster.servers:
        server.result()


@pytest.mark.proves("P1", "P3", "P7")
@pytest.mark.parametrize(
    ("workers", "servers", "group_size", "requests"),
    [(1, 1, 1, 150), (3, 2, 1, 40), (1, 2, 2, 40)],
)
def test_anything_comes_back_as_it_must(
    job, workers: int, servers: int, group_size: int, requests: int
) -> None:
    cluster = job(workers, servers, group_size=group_size)
    run_at_random(cluster, requests, depth=8)
    cluster.stop()


def push_rank_in_lane(lane: int) -> list[int]:
    """What every server group answers: its own lane and the pushed number."""
    pulls = [torch.zeros(2, dtype=torch.int64) for _ in range(roles.servers())]
    fserver.wait(fserver.push_pull([torch.tensor([lane])], [0], pulls, range(len(pulls))))
    return [int(value) for pull in pulls for value in pull]


def answer_with_lane(lane: int) -> list[int]:
    batches = fserver.get_batch(30_000)
    for batch in batches:
        fserver.respond([torch.tensor([lane, int(batch.tensors[0])])], batch.handler)
    return [int(batch.tensors[0]) for batch in batches]


@pytest.mark.proves("P1", "P3")
def test_instances_talk_to_those_of_their_lane(job) -> None:
    cluster = job(2, 2, group_size=2)
    for rank, server in enumerate(cluster.servers):
        server.start(answer_with_lane, rank % 2)
    for rank, worker in enumerate(cluster.workers):
        worker.start(push_rank_in_lane, rank % 2)
    for rank, worker in enumerate(cluster.workers):
        assert worker.result() == [rank % 2] * 4
    for rank, server in enumerate(cluster.servers):
        assert server.result() == [rank % 2] * 2
    # One barrier for all, one for each lane.
    for node in cluster.all[1:]:
        node.start(roles.call, "barrier", True, True)
    for node in cluster.all[1:]:
        node.result()
    for node in cluster.servers[::2] + cluster.workers[::2]:
        node.start(roles.call, "barrier", True, include_worker=True, instance_barrier=False)
    for node in cluster.servers[::2] + cluster.workers[::2]:
        node.result()
    cluster.stop()


def push_numpy(rank: int, times: int) -> None:
    for i in range(times):
        push = np.arange(100, dtype=np.int32) * rank + i
        pull = np.empty_like(push)
        fserver.wait(fserver.push_pull([push], [rank], [pull], [rank]), 60_000)
        assert (pull == push).all()


@pytest.mark.proves("P8")
@pytest.mark.timeout(120)
def test_forty_workers_share_a_server(job) -> None:
    cluster = job(40, 1)
    cluster.servers[0].start(roles.serve, 5)
    for rank, worker in enumerate(cluster.workers):
        worker.start(push_numpy, rank, 5)
    for worker in cluster.workers:
        worker.result(60)
    assert cluster.servers[0].result() == 200


def ask_evenly(requests: int) -> dict[str, int]:
    """Requests of changing keys and sizes, three at a time, some of them pushes alone."""
    sizes = [16, 3_500, 58_000, 1]
    pushes = [torch.rand(size) for size in sizes]
    pulls = [[torch.empty(size) for size in sizes] for _ in range(3)]
    handlers: list[int] = []
    for i in range(requests):
        k = i % len(sizes)
        wanted = [] if i % 7 == 0 else [pulls[i % 3][k]]
        handlers.append(fserver.push_pull([pushes[k]], [i % 1000], wanted, [0] * len(wanted)))
        if len(handlers) == 3:
            fserver.wait(handlers.pop(0), 60_000)
    for handler in handlers:
        fserver.wait(handler, 60_000)
    gc.collect()
    return dict(roles.node().counts())


def serve_evenly(requests: int) -> dict[str, int]:
    for i in range(requests):
        (batch,) = fserver.get_batch(60_000)
        fserver.respond([] if i % 7 == 0 else batch.tensors, batch.handler)
    del batch
    gc.collect()
    return dict(roles.node().counts())


def run_evenly(cluster: Job, requests: int) -> list[dict[str, int]]:
    """In multiples of the pattern, so that both sides agree on it."""
    assert requests % 84 == 0
    cluster.servers[0].start(serve_evenly, requests)
    mine = cluster.workers[0].start(ask_evenly, requests).result(300)
    return [mine, cluster.servers[0].result()]


@pytest.mark.proves("P7")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("requests", [5_040, pytest.param(100_800, marks=pytest.mark.long)])
def test_nothing_grows(job, requests: int) -> None:
    cluster = job(1, 1)
    nodes = [cluster.workers[0], cluster.servers[0]]
    run_evenly(cluster, 840)
    slots = [counts["slots"] for counts in run_evenly(cluster, 84)]
    memory = [node.resident_bytes() for node in nodes]
    descriptors = [node.open_descriptors() for node in nodes]
    counts = run_evenly(cluster, requests)
    assert [each["slots"] for each in counts] == slots
    assert [each["requests"] for each in counts] == [0, 0]
    assert [node.open_descriptors() for node in nodes] == descriptors
    for node, before in zip(nodes, memory, strict=True):
        assert node.resident_bytes() < before + (8 << 20), node.name
    cluster.stop()


@pytest.mark.proves("P7")
def test_too_much_under_way_makes_the_pusher_wait(job) -> None:
    cluster = job(1, 1)
    worker, server = cluster.workers[0], cluster.servers[0]
    worker.start(push_without_waiting, 200)
    time.sleep(0.3)
    assert not worker.done(), "the server holds as much as it may"
    server(serve_evenly_pushes, 200)
    worker.result()


def push_without_waiting(count: int) -> None:
    tensor = torch.rand(1000)
    handlers = [fserver.push_pull([tensor], [1], [], []) for _ in range(count)]
    for handler in handlers:
        fserver.wait(handler)


def serve_evenly_pushes(count: int) -> None:
    for _ in range(count):
        (batch,) = fserver.get_batch(30_000)
        fserver.respond([], batch.handler)


@pytest.mark.proves("P2")
def test_a_job_can_begin_again(job) -> None:
    cluster = job(2, 1)
    for _ in range(3):
        for worker in cluster.workers:
            worker.start(roles.echo)
        cluster.servers[0](roles.serve, 1)
        for worker in cluster.workers:
            worker.result()
        cluster.stop()
        cluster.init()
    cluster.stop()
