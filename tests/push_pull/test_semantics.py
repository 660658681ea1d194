"""What the calls mean, point by point, with real processes."""

import pytest
import roles
import torch
from nodes import NodeError
from processes import eventually
from tensorbus import fserver

LATE = 100  # ms, for what must not come


def two_sums() -> None:
    """Two pushes; server s answers two tensors: their sum plus s, and their difference plus s."""
    a, b = torch.rand(3, 4), torch.rand(3, 4)
    pulls = [torch.zeros(3, 4) for _ in range(2 * roles.servers())]
    keys = range(len(pulls))
    handler = fserver.push_pull((a, b), (5, 9), pulls, keys)
    assert fserver.get_all_handlers(handler) == [handler + i for i in range(4)]
    fserver.wait(handler)
    for server in range(roles.servers()):
        assert torch.equal(pulls[2 * server], a + b + server)
        assert torch.equal(pulls[2 * server + 1], a - b + server)
    assert fserver.get_all_handlers(handler) == [handler]
    fserver.wait(handler + 3)  # each of them can be waited for
    assert fserver.push_pull([a], [1], [], []) == handler + 4
    with pytest.raises(fserver.BadArgument, match="3 pull tensors cannot be divided among 2"):
        fserver.push_pull([a], [1], pulls[:3], range(3))
    fserver.wait(handler + 4)


def answer_two_sums() -> None:
    (batch,) = fserver.get_batch()
    assert isinstance(batch, fserver.ServerDataBatch)
    assert batch.keys == [5, 9]
    a, b = batch.tensors
    assert a.shape == (3, 4)
    assert a.dtype == torch.float32
    fserver.respond([a + b + roles.group(), a - b + roles.group()], batch.handler)
    ((handler, (pushed,), keys),) = fserver.get_batch()
    assert (pushed.shape, keys) == ((3, 4), [1])
    fserver.respond([], handler)


@pytest.mark.proves("P1", "P2")
def test_pushes_go_to_all_servers_and_pulls_by_position(job) -> None:
    cluster = job(1, 2)
    for server in cluster.servers:
        server.start(answer_two_sums)
    cluster.workers[0](two_sums)
    for server in cluster.servers:
        server.result()
    cluster.stop()


def push_numbers(numbers: list[int]) -> None:
    handlers = [fserver.push_pull([torch.tensor([n])], [n], [], []) for n in numbers]
    for handler in handlers:
        fserver.wait(handler, 30_000)


def batch_of_numbers(workers: list[int] | None = None) -> list[int]:
    batches = fserver.get_batch(30_000, workers)
    numbers = [int(batch.tensors[0]) for batch in batches]
    for batch in batches:
        fserver.respond([], batch.handler)
    return numbers


@pytest.mark.proves("P3")
def test_a_batch_has_the_next_request_of_every_worker(job) -> None:
    cluster = job(3, 1)
    server = cluster.servers[0]
    cluster.workers[2].start(push_numbers, [20, 21])
    cluster.workers[0].start(push_numbers, [0, 1])

    def only_one_is_missing() -> bool:
        error = server.start(roles.call, "get_batch", LATE).error()
        assert "TimeoutError" in error.kinds
        return error.message == "no request from worker 1 in time"

    eventually(only_one_is_missing, "the requests of the others", 20)
    assert server(batch_of_numbers, [2]) == [20]
    cluster.workers[1].start(push_numbers, [10, 11])
    assert server(batch_of_numbers) == [0, 10, 21]
    assert server(batch_of_numbers, [1, 0]) == [1, 11]
    for worker in cluster.workers:
        worker.result()


def answer_wrongly() -> list[str]:
    """The first worker too little, the second as it should be."""
    texts = []
    first, second = fserver.get_batch()
    for tensors in ([torch.rand(3)], [], [torch.rand(4), torch.rand(4)]):
        with pytest.raises(fserver.BadArgument) as refused:
            fserver.respond(tensors, first.handler)
        texts.append(str(refused.value))
    fserver.respond(second.tensors, second.handler)
    for handler in (second.handler, 99, -1):
        with pytest.raises(RuntimeError):
            fserver.respond([], handler)
    return texts


@pytest.mark.proves("P4")
def test_an_answer_of_the_wrong_size_is_an_error_on_both_sides(job) -> None:
    cluster = job(2, 1)
    for worker in cluster.workers:
        worker.start(roles.echo, 4)
    texts = cluster.servers[0](answer_wrongly)
    assert "has 12 bytes, its pull tensor 16" in texts[0]
    assert all("has been answered already" in text for text in texts[1:])
    error = cluster.workers[0].error()
    assert "ValueError" in error.kinds
    assert texts[0] in error.message
    cluster.workers[1].result()
    # And they go on.
    for worker in cluster.workers:
        worker.start(roles.echo)
    cluster.servers[0](roles.serve, 1)
    for worker in cluster.workers:
        worker.result()


def pull_rows(rows: int) -> list[list[float]]:
    pull = torch.zeros(rows, 2)
    fserver.wait(fserver.push_pull([pull], [0], [pull], [0]))
    return pull.tolist()


def respond_rows(compat: bool) -> None:
    buffer = torch.arange(10.0).reshape(5, 2)
    batches = fserver.get_batch()
    fserver.respond_vec(
        buffer,
        [batch.tensors[0] for batch in batches],
        [batch.handler for batch in batches],
        compat_row0=compat,
    )


@pytest.mark.proves("P5")
def test_rows_of_one_buffer_answer_all_workers(job) -> None:
    cluster = job(2, 1)
    rows = [[2.0 * i, 2.0 * i + 1] for i in range(5)]
    for compat, second in ((False, rows[2:]), (True, rows[:3])):
        cluster.workers[0].start(pull_rows, 2)
        cluster.workers[1].start(pull_rows, 3)
        cluster.servers[0](respond_rows, compat)
        assert cluster.workers[0].result() == rows[:2]
        assert cluster.workers[1].result() == second


def register(pooled: bool) -> None:
    global buffer
    import tensorbus

    buffer = tensorbus.empty([4, 100]) if pooled else torch.empty(4, 100)
    fserver.register_recv_buffer(buffer, [0, 0, 1, 1], [1, 2, 1, 2])
    with pytest.raises(fserver.BadArgument, match="cannot be divided into 3"):
        fserver.register_recv_buffer(buffer, [0, 0, 1], [1, 2, 3])
    with pytest.raises(fserver.BadArgument, match="no worker 2"):
        fserver.register_recv_buffer(buffer, [2], [1])


buffer: torch.Tensor


def receive_registered(rounds: int) -> dict[str, int]:
    """Where pushes lie, and what the buffer itself holds."""
    for _ in range(rounds):
        for rank, batch in enumerate(fserver.get_batch()):
            for i, tensor in enumerate(batch.tensors):
                assert tensor.data_ptr() == buffer[2 * rank + i].data_ptr()
                assert torch.equal(buffer[2 * rank + i][: tensor.numel()], tensor.reshape(-1))
            fserver.respond([tensor.clone() for tensor in batch.tensors], batch.handler)
    return dict(roles.node().counts())


def push_registered(rounds: int) -> None:
    for _ in range(rounds):
        pushes = [torch.rand(100), torch.rand(5, 10)]
        pulls = [torch.empty_like(push) for push in pushes]
        fserver.wait(fserver.push_pull(pushes, [1, 2], pulls, [0, 1]))
        assert all(map(torch.equal, pushes, pulls))


def push_too_much() -> None:
    with pytest.raises(fserver.BadArgument, match=r"has 404 bytes; .* has 400"):
        fserver.wait(fserver.push_pull([torch.rand(101)], [1], [], []))


@pytest.mark.proves("P6")
def test_pushes_land_in_the_registered_buffer(job, transport: str) -> None:
    cluster = job(2, 1)
    straight = 0
    for pooled in (False, True):
        cluster.servers[0](register, pooled)
        for worker in cluster.workers:
            worker.start(push_registered, 5)
        counts = cluster.servers[0](receive_registered, 5)
        for worker in cluster.workers:
            worker.result()
        # No copy where both see the buffer and the worker knows of it: from the second round on.
        straight += 16 if pooled and transport == "shm" else 0
        assert counts["pushes_straight"] >= straight
        assert counts["pushes_straight"] == 0 or straight > 0
        cluster.workers[0](push_too_much)


def misuse() -> None:
    one = torch.rand(2)
    wrong: list[tuple[object, ...]] = [
        ([], [], [], []),
        ([one], [], [], []),
        ([one], [1, 2], [], []),
        ([one], [-1], [], []),
        ([one], [1], [one], []),
        ([one], ["a"], [], []),
        ([one], None, [], []),
        (["a"], [1], [], []),
        ([one], [1], [torch.zeros(1).expand(4)], [1]),
    ]
    for arguments in wrong:
        with pytest.raises((RuntimeError, TypeError)):
            fserver.push_pull(*arguments)  # type: ignore[arg-type]
    for elsewhere in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        with pytest.raises(fserver.BadArgument, match="push tensor 0 cannot be read"):
            fserver.push_pull([elsewhere], [1], [], [])
    for name in ("wait", "get_all_handlers", "fetch_trace"):
        for handler in (0, 7, -3):
            with pytest.raises(fserver.BadArgument, match=f"no request has the handler {handler}"):
                getattr(fserver, name)(handler)
    with pytest.raises(fserver.BadArgument, match="only a server"):
        fserver.get_batch()
    with pytest.raises(fserver.BadArgument, match="only a server"):
        fserver.respond([], 1)
    with pytest.raises(fserver.BadArgument, match="init"):
        fserver.init()
    with pytest.raises(fserver.BadArgument, match="nobody"):
        fserver.barrier(False, False)
    with pytest.raises(fserver.BadArgument, match="has no part"):
        fserver.barrier(True, False)
    for name in ("SimpleNotify", "map_pinned_tensor", "write_flag", "wait_flag", "seq_add_one"):
        with pytest.raises(RuntimeError, match="needs a GPU"):
            getattr(fserver, name)()


def misuse_without_init() -> None:
    for name, arguments in (
        ("push_pull", ([], [], [], [])),
        ("wait", (1,)),
        ("get_batch", ()),
        ("respond", ([], 1)),
        ("barrier", (True, True)),
        ("stop", ()),
        ("fetch_trace", (1,)),
    ):
        with pytest.raises(fserver.BadArgument, match="init"):
            getattr(fserver, name)(*arguments)


@pytest.mark.proves("P8")
def test_misuse_is_refused_and_harms_nobody(job) -> None:
    cluster = job(1, 1)
    cluster.workers[0](misuse)
    error = cluster.servers[0].start(roles.call, "push_pull", [], [], [], []).error()
    assert "only a worker" in error.message
    cluster.workers[0].start(roles.echo)
    cluster.servers[0](roles.serve, 1)
    cluster.workers[0].result()
    cluster.stop()
    for node in cluster.all:
        node(misuse_without_init)


@pytest.mark.proves("P9")
@pytest.mark.parametrize("pooled", [False, True])
def test_a_late_answer_writes_nothing(job, pooled: bool) -> None:
    cluster = job(1, 2)
    worker = cluster.workers[0]
    handler = worker(roles.push, 1000, pooled, True, 7.0)
    cluster.servers[0](roles.serve, 1)
    error = worker.start(roles.call, "wait", handler, LATE).error()
    assert {"TimeoutError", "RuntimeError"} <= set(error.kinds)
    assert error.message == "no answer from server 1 in time"
    cluster.servers[1](roles.serve, 1)
    # Whatever it sent has come by the time that the next answer has.
    worker.start(roles.echo)
    for server in cluster.servers:
        server(roles.serve, 1)
    worker.result()
    assert worker(roles.pulled)[1] == [7.0] * 1000
    with pytest.raises(NodeError, match="no answer from server 1"):
        worker(roles.call, "wait", handler)
    cluster.stop()


def traced() -> tuple[list[int], list[int], list[int], int, int]:
    before = fserver.get_nanosecond()
    pulls = [torch.empty(4) for _ in range(2)]
    handler = fserver.push_pull([torch.rand(4)], [1], pulls, [1, 2])
    fserver.wait(handler)
    after = fserver.get_nanosecond()
    slowest = fserver.fetch_trace(handler)
    assert fserver.fetch_trace(handler + 1) == slowest
    return slowest, fserver.fetch_trace(handler, 0), fserver.fetch_trace(handler, 1), before, after


def serve_slowly(seconds: float) -> tuple[int, int]:
    import time

    (batch,) = fserver.get_batch()
    given = fserver.get_nanosecond()
    time.sleep(seconds)
    before = fserver.get_nanosecond()
    fserver.respond(batch.tensors, batch.handler)
    return given, before


@pytest.mark.proves("P11")
def test_traces_have_eight_times(job) -> None:
    cluster = job(1, 2)
    cluster.servers[0].start(serve_slowly, 0.1)
    cluster.servers[1].start(serve_slowly, 0.0)
    slowest, *each, before, after = cluster.workers[0](traced)
    assert slowest == each[0]
    for trace, server in zip(each, cluster.servers, strict=True):
        given, responded = server.result()
        assert len(trace) == 8
        # One machine has one clock, also between namespaces.
        assert trace == sorted(trace)
        assert before <= trace[0]
        assert trace[7] <= after
        assert trace[3] <= given
        assert responded <= trace[4]
    assert each[0][4] - each[0][3] >= 90_000_000
    cluster.stop()
