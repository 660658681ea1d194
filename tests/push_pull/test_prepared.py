"""Requests that are sent more than once: prepared ones, and those that the worker recognises."""

from concurrent.futures import ThreadPoolExecutor
from signal import SIGKILL

import pytest
import roles
import tensorbus
import torch
from tensorbus import fserver

OFTEN = 8  # until a request is known that was not prepared


def send_prepared(times: int, pooled: bool) -> dict[str, int]:
    push = torch.empty(3, 4)
    empty = tensorbus.empty if pooled else torch.empty
    pulls = [empty([3, 4]) for _ in range(roles.servers())]
    keys = list(range(len(pulls)))
    request = fserver.prepare([push], [5], pulls, keys)
    keys.clear()
    for i in range(times):
        push.fill_(i)
        handler = fserver.push_pull_prepared(request)
        push.fill_(-1)  # what was pushed may be changed at once
        assert len(fserver.get_all_handlers(handler)) == 2
        fserver.wait(handler, 30_000)
        for server, pull in enumerate(pulls):
            assert torch.equal(pull, roles.marked(torch.full((3, 4), float(i)), server))
    return dict(roles.node().counts())


@pytest.mark.proves("P13")
@pytest.mark.parametrize("pooled", [False, True])
def test_a_prepared_request_is_sent_often(job, transport: str, pooled: bool) -> None:
    cluster = job(1, 2)
    times = 50
    for server in cluster.servers:
        server.start(roles.serve, times)
    counts = cluster.workers[0](send_prepared, times, pooled)
    for server in cluster.servers:
        server.result()
    assert counts["repeated"] == (times - 1 if transport == "shm" else 0)
    cluster.stop()


def move_tensors() -> None:
    push, pull = torch.rand(16), torch.rand(16)
    request = fserver.prepare([push], [1], [pull], [1])
    for tensor, name in ((push, "push"), (pull, "pull")):
        before = tensor.detach()
        for changed in (torch.rand(16), before.view(4, 4), before[:8]):
            tensor.data = changed
            with pytest.raises(fserver.BadArgument, match=f"{name} tensor 0 has other memory, or"):
                fserver.push_pull_prepared(request)
        tensor.data = before
    fserver.wait(fserver.push_pull_prepared(request), 30_000)
    assert torch.equal(push, pull)


@pytest.mark.proves("P13")
def test_a_tensor_that_moved_is_named(job) -> None:
    cluster = job(1, 1)
    cluster.workers[0].start(move_tensors)
    cluster.servers[0](roles.serve, 1)
    cluster.workers[0].result()
    cluster.stop()


def prepare_and_keep() -> None:
    global kept
    kept = fserver.prepare([torch.rand(4)], [1], [torch.rand(4)], [1])
    fserver.wait(fserver.push_pull_prepared(kept), 30_000)


kept: fserver.PreparedRequest


def send_kept(error: str | None = None) -> None:
    if error is None:
        fserver.wait(fserver.push_pull_prepared(kept), 30_000)
        return
    with pytest.raises(fserver.BadArgument, match=error):
        fserver.push_pull_prepared(kept)


def misuse() -> None:
    one = torch.rand(2)
    for arguments in (
        ([], [], [], []),
        ([one], [], [], []),
        ([one], [-1], [], []),
        ([one], [1], [torch.zeros(1).expand(4)], [1]),
        (["a"], [1], [], []),
        (7, [1], [], []),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            fserver.prepare(*arguments)  # type: ignore[arg-type]
    for wrong in (None, 7, [one]):
        with pytest.raises(TypeError):
            fserver.push_pull_prepared(wrong)  # type: ignore[arg-type]


@pytest.mark.proves("P13")
def test_a_request_belongs_to_its_worker(job) -> None:
    cluster = job(1, 1)
    worker, server = cluster.workers[0], cluster.servers[0]
    worker(misuse)
    worker.start(prepare_and_keep)
    server(roles.serve, 1)
    worker.result()
    for name, arguments in (("prepare", ([], [], [], [])), ("push_pull_prepared", (None,))):
        assert "only a worker" in server.start(roles.call, name, *arguments).error().message
    cluster.stop()
    worker(send_kept, "init")
    cluster.init()
    worker(send_kept, "has not prepared")
    worker.start(prepare_and_keep)
    server(roles.serve, 1)
    worker.result()
    cluster.stop()


@pytest.mark.proves("P13", "P10")
def test_a_dead_server_ends_a_prepared_request(job) -> None:
    cluster = job(1, 1)
    worker, server = cluster.workers[0], cluster.servers[0]
    worker.start(prepare_and_keep)
    server(roles.serve, 1)
    worker.result()
    server.start(roles.serve, 1)
    worker(send_kept)
    server.result()
    worker.start(send_kept)
    server.signal(SIGKILL)
    for _ in range(2):
        error = worker.error(10)
        assert "PeerLostError" in error.kinds
        assert "server 0" in error.message
        worker.start(send_kept)
    worker.error(10)


def send_from_two_threads(times: int) -> None:
    push = torch.rand(100)
    request = fserver.prepare([push], [1], [], [])

    def send() -> None:
        for _ in range(times):
            fserver.wait(fserver.push_pull_prepared(request), 30_000)

    with ThreadPoolExecutor(2) as threads:
        for sending in [threads.submit(send) for _ in range(2)]:
            sending.result()
    assert roles.node().counts()["requests"] == 0


def answer_nothing(times: int) -> None:
    for _ in range(times):
        for batch in fserver.get_batch(30_000):
            fserver.respond([], batch.handler)


@pytest.mark.proves("P13")
def test_two_threads_send_the_same(job) -> None:
    cluster = job(1, 1)
    cluster.servers[0].start(answer_nothing, 200)
    cluster.workers[0](send_from_two_threads, 100)
    cluster.servers[0].result()
    cluster.stop()


FORMS = [
    (torch.float32, (16,)),
    (torch.int32, (16,)),
    (torch.float32, (4, 4)),
    (torch.uint8, (64,)),
    (torch.float16, (2, 16)),
]


BLOCK = 3 * OFTEN  # often enough to be recognised; then it is another's turn, and later its own


def replace_tensors(times: int) -> int:
    """One tensor after the other in the same memory, as an allocator may give it."""
    memory = torch.empty(2, 64, dtype=torch.uint8)
    for i in range(times):
        dtype, shape = FORMS[i // BLOCK % len(FORMS)]
        push, pull = (part.view(dtype).view(shape) for part in memory)
        push.fill_(i % 100)
        fserver.wait(fserver.push_pull([push], [i // BLOCK % 2], [pull], [0]), 30_000)
        assert torch.equal(push, pull)
        del push, pull
    return int(roles.node().counts()["repeated"])


def check_forms(times: int) -> None:
    for i in range(times):
        ((handler, (tensor,), keys),) = fserver.get_batch(30_000)
        dtype, shape = FORMS[i // BLOCK % len(FORMS)]
        assert (tensor.dtype, tuple(tensor.shape), keys) == (dtype, shape, [i // BLOCK % 2])
        fserver.respond([tensor], handler)


@pytest.mark.proves("P13")
def test_what_comes_in_the_place_of_another_tensor_is_itself(job, transport: str) -> None:
    cluster = job(1, 1)
    times = 4 * BLOCK * len(FORMS)
    cluster.servers[0].start(check_forms, times)
    repeated = cluster.workers[0](replace_tensors, times)
    cluster.servers[0].result()
    assert (repeated > 0) == (transport == "shm")
    cluster.stop()
