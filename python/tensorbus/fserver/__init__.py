"""Push tensors to servers and pull their answers: a drop-in for ``fserver_lib``.

The role of a process and its place in the job are in the environment (``DMLC_ROLE``, ...); every
process calls :func:`init` first and :func:`stop` last. ``docs/push_pull.md`` has the details.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tensorbus import _core
from tensorbus._core import PushPullRequest as PreparedRequest
from tensorbus.fserver.errors import BadArgument, WaitTimeout

if TYPE_CHECKING:
    import torch

__all__ = [
    "BadArgument",
    "PreparedRequest",
    "ServerDataBatch",
    "SimpleNotify",
    "WaitTimeout",
    "barrier",
    "fetch_trace",
    "get_all_handlers",
    "get_batch",
    "get_nanosecond",
    "init",
    "map_pinned_tensor",
    "prepare",
    "push_pull",
    "push_pull_prepared",
    "register_recv_buffer",
    "respond",
    "respond_vec",
    "seq_add_one",
    "stop",
    "wait",
    "wait_flag",
    "write_flag",
]


class ServerDataBatch(NamedTuple):
    """One request. The tensors are valid until it is answered."""

    handler: int
    tensors: list[torch.Tensor]
    keys: list[int]


_worker: _core.PushPullWorker | None = None
_server: _core.PushPullServer | None = None
_scheduler: _core.PushPullScheduler | None = None
_timeout: float = 0.0


def init() -> None:
    """Joins the job; returns when all of it is present.

    Raises ``WaitTimeout`` naming who is missing after ``TENSORBUS_INIT_TIMEOUT`` seconds.
    """
    global _worker, _server, _scheduler, _timeout
    if _worker or _server or _scheduler:
        raise BadArgument("init() was called before; stop() comes first")
    environment = _core.PushPullEnvironment.read()
    _timeout = environment.timeout
    if environment.role == "worker":
        _worker = _core.PushPullWorker(environment)
    elif environment.role == "server":
        _server = _core.PushPullServer(environment)
    else:
        _scheduler = _core.PushPullScheduler(environment)


def stop() -> None:
    """Leaves the job; returns when all have called it or died. ``init()`` works again then."""
    node = _worker or _server or _scheduler
    if node is None:
        raise BadArgument("stop() without init()")
    try:
        node.stop(_timeout)
    finally:
        _forget()


@atexit.register
def _forget() -> None:
    """The others see that this node has left; nothing of it lives until the interpreter's end."""
    global _worker, _server, _scheduler
    _worker = _server = _scheduler = None


def _no(role: str) -> NoReturn:
    if _worker or _server or _scheduler:
        raise BadArgument(f"only a {role} can call this")
    raise BadArgument("call init() first")


def push_pull(
    push_tensors: Sequence[Any],
    push_keys: Sequence[int],
    pull_tensors: Sequence[Any],
    pull_keys: Sequence[int],
    need_event: bool = True,  # noqa: ARG001
) -> int:
    """Pushes every push tensor to every server; server s answers its share of the pull tensors.

    Returns at once, with the first of the request's handlers; waits only while too much is under
    way. Push tensors may be changed afterwards, pull tensors are written until :func:`wait`
    returns. ``need_event`` has no meaning on the CPU.
    """
    if _worker is None:
        _no("worker")
    return _worker.push_pull(push_tensors, push_keys, pull_tensors, pull_keys, _timeout)


def prepare(
    push_tensors: Sequence[Any],
    push_keys: Sequence[int],
    pull_tensors: Sequence[Any],
    pull_keys: Sequence[int],
) -> PreparedRequest:
    """A request that :func:`push_pull_prepared` sends as often as it is told to, each time with
    what the push tensors hold then. It keeps the tensors."""
    if _worker is None:
        _no("worker")
    return _worker.prepare(push_tensors, push_keys, pull_tensors, pull_keys)


def push_pull_prepared(request: PreparedRequest) -> int:
    """As :func:`push_pull`. ``BadArgument`` if a tensor was given other memory or another form
    since the request was prepared, or if another worker prepared it."""
    if _worker is None:
        _no("worker")
    return _worker.push_pull_prepared(request, _timeout)


def wait(handler: int, timeout_ms: float = 10000) -> None:
    """Returns when all servers have answered.

    ``WaitTimeout`` names those who have not; the request is cancelled then. A server that died is
    a ``tensorbus.PeerLostError``; what a server refused is raised with its text.
    """
    if _worker is None:
        _no("worker")
    _worker.wait(handler, timeout_ms / 1000)


def get_all_handlers(handler: int) -> list[int]:
    """One handler per push tensor and per pull slot of a server; ``[handler]`` after ``wait``."""
    if _worker is None:
        _no("worker")
    return _worker.handlers(handler)


def fetch_trace(handler: int, server: int | None = None) -> list[int]:
    """Eight times in ns: the request handed over, sent, received, given to the server's code; the
    answer handed over, sent, received, given back. Of the slowest server unless one is named."""
    if _worker is None:
        _no("worker")
    return _worker.trace(handler, server)


def get_batch(
    timeout_ms: float | None = None, workers: Sequence[int] | None = None
) -> list[ServerDataBatch]:
    """The next request of every worker (or of ``workers``), by rank: waits for all of them.

    A worker that died is reported once, by a ``tensorbus.PeerLostError``, and then left out.
    """
    if _server is None:
        _no("server")
    return _server.get_batch(
        None if timeout_ms is None else timeout_ms / 1000, workers, ServerDataBatch
    )


def respond(
    tensors: Sequence[Any],
    handler: int,
    need_event: bool = False,  # noqa: ARG001
) -> None:
    """Answers a request with as many tensors as its worker pulls from this server, of its sizes."""
    if _server is None:
        _no("server")
    _server.respond(tensors, handler)


def respond_vec(
    ret_buffer: Any,
    tensors_vec: Sequence[Any],
    handler_vec: Sequence[int],
    *,
    compat_row0: bool = False,
) -> None:
    """Answers request i with as many rows of ``ret_buffer`` as ``tensors_vec[i]`` has, one after
    the other; with ``compat_row0`` each from the first row."""
    if _server is None:
        _no("server")
    _server.respond_vec(ret_buffer, tensors_vec, handler_vec, compat_row0)


def register_recv_buffer(
    tensor: Any, worker_ranks: Sequence[int], push_keys: Sequence[int]
) -> None:
    """Chunk i of the tensor is where pushes of ``push_keys[i]`` from ``worker_ranks[i]`` land:
    straight if it comes from ``tensorbus.empty`` and the worker is on this host."""
    if _server is None:
        _no("server")
    _server.register_buffer(tensor, worker_ranks, push_keys)


def barrier(
    include_server: bool,
    include_client: bool | None = None,
    instance_barrier: bool = True,
    *,
    include_worker: bool | None = None,
    timeout_ms: float | None = None,
) -> None:
    """Waits for all servers and/or all workers; with ``instance_barrier=False`` only for those
    with the same place in their groups as this one."""
    if (include_client is None) == (include_worker is None):
        raise BadArgument("give include_client, or include_worker, which is the same")
    clients = bool(include_client or include_worker)
    if not include_server and not clients:
        raise BadArgument("a barrier for nobody")
    node = _worker or _server
    if node is None:
        _no("worker or a server")
    timeout = _timeout if timeout_ms is None else timeout_ms / 1000
    node.barrier(bool(include_server), clients, bool(instance_barrier), timeout)


def get_nanosecond() -> int:
    """The clock of traces."""
    return _core.push_pull_clock()


def _needs_a_gpu(name: str) -> NoReturn:
    raise RuntimeError(f"{name} needs a GPU, and tensorbus moves tensors of the CPU only")


class SimpleNotify:
    """Signals between a GPU and its host: not here."""

    def __init__(self, *_: object, **__: object) -> None:
        _needs_a_gpu("SimpleNotify")


def map_pinned_tensor(*_: object, **__: object) -> NoReturn:
    _needs_a_gpu("map_pinned_tensor")


def write_flag(*_: object, **__: object) -> NoReturn:
    _needs_a_gpu("write_flag")


def wait_flag(*_: object, **__: object) -> NoReturn:
    _needs_a_gpu("wait_flag")


def seq_add_one(*_: object, **__: object) -> NoReturn:
    _needs_a_gpu("seq_add_one")
