"""Nodes that die, stop, are missing or say nonsense: nobody else dies, nobody hangs."""

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import roles
import tensorbus
import torch
from processes import eventually, is_stopped
from tensorbus import fserver

SOON = 2.0  # seconds, in which a death must be known


@pytest.mark.proves("P10")
def test_a_dead_server_ends_the_wait_for_it(job) -> None:
    cluster = job(2, 2)
    handlers = [worker(roles.push) for worker in cluster.workers]
    for worker, handler in zip(cluster.workers, handlers, strict=True):
        worker.start(roles.seconds_until_error, "wait", handler, 30_000)
    time.sleep(0.2)
    cluster.servers[1].signal(signal.SIGKILL)
    killed = time.monotonic()
    for worker in cluster.workers:
        _, kinds, message = worker.result()
        assert time.monotonic() - killed < SOON
        assert "PeerLostError" in kinds
        assert message.startswith("server 1 is gone")
    # Nor does anybody ask it again.
    error = cluster.workers[0].start(roles.echo).error()
    assert "server 1 is gone" in error.message


@pytest.mark.proves("P3", "P10")
def test_a_dead_worker_is_reported_once_and_left_out(job) -> None:
    cluster = job(3, 1)
    server = cluster.servers[0].start(roles.seconds_until_error, "get_batch", 30_000)
    for worker in (cluster.workers[0], cluster.workers[2]):
        worker.start(roles.echo_many, 3)
    time.sleep(0.2)
    cluster.workers[1].signal(signal.SIGKILL)
    killed = time.monotonic()
    _, kinds, message = server.result()
    assert time.monotonic() - killed < SOON
    assert "PeerLostError" in kinds
    assert message.startswith("worker 1 is gone")
    assert server(roles.serve, 3) == 6
    for worker in (cluster.workers[0], cluster.workers[2]):
        worker.result()
        worker.signal(signal.SIGKILL)
    for _ in range(2):
        error = server.start(roles.call, "get_batch", 5_000).error()
        assert "PeerLostError" in error.kinds
    assert server.start(roles.call, "get_batch", 5_000).error().message.startswith("every worker")


taken: list[fserver.ServerDataBatch] = []


def take_batch() -> None:
    taken[:] = fserver.get_batch(30_000)


def respond_to_taken() -> None:
    """To a worker that died meanwhile: nothing happens, and the other gets its answer."""
    for batch in taken:
        fserver.respond([roles.marked(batch.tensors[0], 0)], batch.handler)
        assert batch.tensors[0].sum() > 0  # its memory is still there


@pytest.mark.proves("P10")
def test_an_answer_to_a_dead_worker_is_dropped(job) -> None:
    cluster = job(2, 1)
    for worker in cluster.workers:
        worker.start(roles.echo, 1000)
    cluster.servers[0](take_batch)
    cluster.workers[0].signal(signal.SIGKILL)
    time.sleep(0.2)
    cluster.servers[0](respond_to_taken)
    cluster.workers[1].result()


def serve_until_all_are_gone() -> int:
    """As a server that lives with losses does it."""
    answered = 0
    while True:
        try:
            for batch in fserver.get_batch(20_000):
                fserver.respond(
                    [roles.marked(tensor, roles.group()) for tensor in batch.tensors],
                    batch.handler,
                )
                answered += 1
        except tensorbus.PeerLostError as error:
            if "every worker" in str(error):
                return answered


def ask_until_told(seed: int) -> int:
    """Until a server is gone, which is an error that says so."""
    done = 0
    rng = random.Random(seed)
    while True:
        try:
            roles.echo(rng.choice([1, 1000, 200_000]))
            done += 1
        except tensorbus.PeerLostError as error:
            return done if "server" in str(error) else -1


@pytest.mark.proves("P10")
@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_kill_at_any_point_harms_nobody_else(job, role: str, request) -> None:
    long = request.config.getoption("--long")
    for seed in range(30 if long else 3):
        cluster = job(2, 2)
        for server in cluster.servers:
            server.start(serve_until_all_are_gone)
        for worker in cluster.workers:
            worker.start(ask_until_told, seed)
        nodes = cluster.servers if role == "server" else cluster.workers
        time.sleep(random.Random(seed).uniform(0.05, 0.3))
        nodes[1].signal(signal.SIGKILL)
        if role == "server":
            for worker in cluster.workers:
                assert worker.result() >= 0
        else:
            time.sleep(0.1)
            assert not cluster.workers[0].done(), "it goes on without the other"
        for worker in cluster.workers:
            if worker is not nodes[1]:
                worker.signal(signal.SIGKILL)
        cluster.servers[0].result()
        cluster.kill()


@pytest.mark.proves("P9", "P10")
def test_a_stopped_server_is_waited_for_and_then_given_up(job) -> None:
    cluster = job(1, 2)
    worker = cluster.workers[0]

    def echo() -> None:
        worker.start(roles.echo)
        for server in cluster.servers:
            server(roles.serve, 1)
        worker.result()

    echo()
    cluster.servers[1].signal(signal.SIGSTOP)
    handler = worker(roles.push)
    cluster.servers[0](roles.serve, 1)
    _, kinds, message = worker(roles.seconds_until_error, "wait", handler, 300)
    assert "TimeoutError" in kinds
    assert message == "no answer from server 1 in time"
    # One that resumes in time goes on.
    cluster.servers[1].signal(signal.SIGCONT)
    cluster.servers[1](roles.serve, 1)
    echo()
    # Heartbeats tell of one that does not.
    cluster.servers[1].signal(signal.SIGSTOP)
    handler = worker(roles.push)
    cluster.servers[0](roles.serve, 1)
    seconds, kinds, message = worker(roles.seconds_until_error, "wait", handler, 20_000)
    assert "PeerLostError" in kinds, message
    assert "server 1" in message
    assert seconds > 3.0
    cluster.servers[1].signal(signal.SIGCONT)


@pytest.mark.proves("P9")
def test_what_a_stopped_server_has_begun_to_write_is_kept(new_job) -> None:
    """The pull tensor lies in shared memory, and a stopped server may go on to write into it."""
    cluster = new_job(1, 1).init()
    worker, server = cluster.workers[0], cluster.servers[0]
    outcomes = []
    # On one core the worker has a turn in the middle of the copy, also on a busy machine.
    core = min(os.sched_getaffinity(0))
    for node in (worker, server):
        node(os.sched_setaffinity, 0, {core})
    while "writing" not in outcomes:
        assert len(outcomes) < 50, outcomes
        handler = worker(roles.push, 100_000_000, True)
        server.start(roles.serve, 1)
        outcomes.append(worker(stop_while_it_writes, handler, server.pid))
        assert outcomes[-1] in ("answered", "writing")
        server.signal(signal.SIGCONT)
        server.result()
    worker.start(roles.echo)
    server(roles.serve, 1)
    worker.result()


def stop_while_it_writes(handler: int, pid: int) -> str:
    """What an expired wait says, and that the tensors outlive it."""
    begin = roles.kept[0].view(torch.int32)[:16]
    while not begin.any():
        pass
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: is_stopped(pid), "the server to stop")
    try:
        fserver.wait(handler, 20)
    except TimeoutError as error:
        roles.kept.clear()
        return "writing" if "server 0 is still writing" in str(error) else str(error)
    return "answered"


@pytest.mark.proves("P4")
def test_wrong_sizes_of_one_worker_do_not_disturb_others(job) -> None:
    cluster = job(2, 1)
    cluster.servers[0].start(answer_sixteen, 30)
    cluster.workers[0].start(ask_wrongly, 30)
    cluster.workers[1].start(roles.echo_many, 30)
    assert cluster.workers[0].result() == 30
    cluster.workers[1].result()
    assert cluster.servers[0].result() == 30


def ask_wrongly(times: int) -> int:
    failed = 0
    for _ in range(times):
        try:
            fserver.wait(fserver.push_pull([torch.rand(16)], [1], [torch.empty(17)], [1]))
        except fserver.BadArgument:
            failed += 1
    return failed


def answer_sixteen(times: int) -> int:
    refused = 0
    for _ in range(times):
        for batch in fserver.get_batch(30_000):
            try:
                fserver.respond(batch.tensors, batch.handler)
            except fserver.BadArgument:
                refused += 1
    return refused


@pytest.mark.proves("P8")
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"DMLC_ROLE": "boss"}, 'DMLC_ROLE is "boss"'),
        ({"DMLC_ROLE": ""}, "DMLC_ROLE is not set"),
        ({"DMLC_NUM_WORKER": ""}, "DMLC_NUM_WORKER is not set"),
        ({"DMLC_NUM_SERVER": "0"}, 'DMLC_NUM_SERVER is "0"'),
        ({"DMLC_PS_ROOT_PORT": "http"}, 'DMLC_PS_ROOT_PORT is "http"'),
        ({"DMLC_PS_ROOT_URI": ""}, "DMLC_PS_ROOT_URI is not set"),
        ({"DMLC_NODE_RANK": "3"}, "worker rank 3, but the job has 2 worker"),
        ({"DMLC_NUM_WORKER": "3"}, "its scheduler of 2 worker and 1 server groups of 1"),
        ({"DMLC_GROUP_SIZE": "2", "DMLC_INSTANCE_ID": "1"}, "DMLC_INSTANCE_ID is 1, but"),
        ({"STEPMESH_BACKEND": "cpu", "STEPMESH_BAKCEND": "shm"}, "STEPMESH_BAKCEND"),
        ({"DMLC_INTERFACE": "nosuch0"}, "nosuch0"),
        ({"TENSORBUS_INIT_TIMEOUT": "soon"}, "TENSORBUS_INIT_TIMEOUT"),
    ],
)
def test_a_wrong_variable_is_named(new_job, changed: dict[str, str], text: str) -> None:
    cluster = new_job(2, 1)
    cluster.scheduler.start(roles.init)
    error = cluster.add("worker", 0, **changed).start(roles.init).error()
    assert "RuntimeError" in error.kinds
    assert text in error.message


@pytest.mark.proves("P10")
@pytest.mark.parametrize("name", ["init", "push_pull", "wait", "get_batch", "barrier", "stop"])
def test_ctrl_c_interrupts_blocking_calls(new_job, name: str, tmp_path: Path) -> None:
    cluster = new_job(1, 1)
    worker, server = cluster.workers[0], cluster.servers[0]
    if name == "init":
        cluster.scheduler.start(roles.init)
    else:
        cluster.init()
    arguments: tuple[Any, ...] = ()
    if name == "wait":
        arguments = (worker(roles.push), 60_000)
    elif name == "barrier":
        arguments = (True, True)
    node = server if name == "get_batch" else worker
    call = push_without_end if name == "push_pull" else roles.call
    entered = tmp_path / "entered"
    node.start(roles.interruptible, str(entered), call, name, *arguments)
    eventually(entered.exists, "the call", 20)
    time.sleep(0.5)
    assert not node.done()
    os.kill(node.pid, signal.SIGINT)
    assert node.result() == "interrupted"
    if name == "wait":  # the node is whole
        node.start(roles.echo)
        server(roles.serve, 2)
        node.result()


def push_without_end(_name: str) -> None:
    """Until it must wait, since nobody answers."""
    while True:
        fserver.push_pull([torch.rand(16)], [1], [torch.empty(16)], [1])


def interrupted_by_a_thread() -> str:
    """Another thread of Python gets on while this one is in a call, and ends it."""

    def interrupt() -> None:
        time.sleep(0.3)
        for _ in range(1000):
            time.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        fserver.get_batch(20_000)
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        thread.join()
    return "not interrupted"


@pytest.mark.proves("P10")
def test_a_blocked_call_lets_other_threads_run(new_job) -> None:
    cluster = new_job(1, 1).init()
    assert cluster.servers[0](interrupted_by_a_thread) == "interrupted"
