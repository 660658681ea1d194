"""What waiting costs, and what a round trip asks of the kernel."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import roles
import torch
from nodes import Node
from processes import eventually
from tensorbus import fserver


def cpu_seconds(node: Node) -> float:
    """Of all its threads, to the nanosecond."""
    tasks = Path(f"/proc/{node.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@pytest.mark.proves("P12")
def test_waiting_processes_sleep(job) -> None:
    """Both in a call and between two."""
    cluster = job(2, 1)
    for worker in cluster.workers:
        worker.start(roles.echo)
    cluster.servers[0](roles.serve, 1)
    for worker in cluster.workers:
        worker.result()
    handler = cluster.workers[0](roles.push)
    cluster.workers[0].start(roles.call, "wait", handler, 60_000)
    cluster.servers[0].start(roles.call, "get_batch", 60_000)
    nodes = [*cluster.workers, *cluster.servers]

    def all_are_idle() -> bool:
        before = [cpu_seconds(node) for node in nodes]
        start = time.monotonic()
        time.sleep(2)
        used = [cpu_seconds(node) - was for node, was in zip(nodes, before, strict=True)]
        return max(used) < 0.01 * (time.monotonic() - start)

    # Not at once: they may still be on the way into their calls.
    eventually(all_are_idle, "less than 1 % of a core", 20)


def ask_often(times: int) -> None:
    push, pull = torch.rand(16), torch.empty(16)
    for _ in range(times):
        fserver.wait(fserver.push_pull([push], [1], [pull], [1]), 60_000)


def serve_often(times: int) -> None:
    for _ in range(times):
        ((handler, tensors, _),) = fserver.get_batch(60_000)
        fserver.respond(tensors, handler)


@pytest.mark.proves("P12")
def test_between_two_that_are_awake_the_kernel_is_not_asked(new_job, tmp_path: Path) -> None:
    """The budget of spinning is raised so that both stay awake, however busy the machine is."""
    cluster = new_job(1, 1, environment={"TENSORBUS_SPIN_US": "10000000"}).init()
    worker, server = cluster.workers[0], cluster.servers[0]
    server.start(serve_often, 100)
    worker(ask_often, 100)
    server.result()
    report = tmp_path / "calls"
    tracer = subprocess.Popen(
        ["strace", "-c", "-o", str(report), "-p", str(worker.pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        if "attached" not in line:
            pytest.skip(f"strace is not allowed here: {line}")
        times = 1000
        server.start(serve_often, times)
        start = time.monotonic()
        worker(ask_often, times)
        seconds = time.monotonic() - start
        server.result()
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=20)
    # Those of the thread that asks. The columns: "% time, seconds, usecs/call, calls, errors,
    # syscall".
    rows = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) .*\b(\w+)$", report.read_text(), re.M)
    calls = sum(int(count) for count, name in rows if name != "total")
    assert rows
    # However many requests there are it looks at descriptors once a millisecond, for signals 50
    # times a second, and sometimes meets the thread that keeps connections alive.
    assert calls < times / 10 + 3000 * seconds, report.read_text()
