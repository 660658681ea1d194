"""What one process of a Ray cluster has of tensorbus: an endpoint, made when it is first needed."""

from __future__ import annotations

import logging
import os
import queue
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import ray
from ray.exceptions import RayDirectTransportError

from tensorbus import _core, pool
from tensorbus.endpoint import Endpoint, Read

logger = logging.getLogger("tensorbus")

T = TypeVar("T")

# Aborts of receives that have not begun are remembered, so many of them.
MOST_ABORTED = 10_000


class Process:
    """Belongs to one ``ray.init``: after the next one everything of the last is released."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session = ""
        self._endpoint: Endpoint | None = None
        self._releases: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._exposed: dict[str, bytes] = {}
        self._reads: dict[str, weakref.WeakSet[Read]] = {}
        self._aborted: OrderedDict[str, None] = OrderedDict()

    def endpoint(self) -> Endpoint:
        session = _session()
        with self._lock:
            if self._endpoint is not None and session != self._session:
                self._releases.put(None)
                self._endpoint.close()
                self._endpoint = None
                self._exposed.clear()
            if self._endpoint is None:
                self._endpoint = on_network(lambda bind: Endpoint(name=_name(), bind=bind))
                self._session = session
                self._releases = queue.SimpleQueue()
                threading.Thread(
                    target=_release,
                    args=(self._endpoint, self._releases),
                    name="tensorbus release",
                    daemon=True,
                ).start()
            return self._endpoint

    def expose(self, obj_id: str, tensors: list[Any], frozen: bool) -> bytes:
        """Also twice for one object: Ray repeats a task whose reply was lost."""
        endpoint = self.endpoint()
        with self._lock:
            known = self._exposed.get(obj_id)
        if known is not None:
            return known
        if frozen:
            tensors = [tensor if _core.is_pooled(tensor) else _pooled(tensor) for tensor in tensors]
        descriptor = endpoint.expose(tensors, frozen=frozen)
        with self._lock:
            first = self._exposed.setdefault(obj_id, descriptor)
        if first is not descriptor:
            endpoint.release(descriptor)
        return first

    def release(self, obj_id: str) -> None:
        """Soon, on a thread of ours: Ray's io thread, which also calls this, must not wait. Until
        then the endpoint keeps the tensors."""
        with self._lock:
            descriptor = self._exposed.pop(obj_id, None)
            if descriptor is not None:
                self._releases.put(descriptor)

    def start_read(
        self,
        obj_id: str,
        descriptor: bytes,
        into: list[Any] | None,
        torch: bool,
        device: str | None = None,
    ) -> Read:
        endpoint = self.endpoint()
        self._check_not_aborted(obj_id)
        read = endpoint.start_read(descriptor, into, torch=torch, device=device)
        with self._lock:
            self._reads.setdefault(obj_id, weakref.WeakSet()).add(read)
            for over in [key for key, reads in self._reads.items() if not reads]:
                del self._reads[over]
        # An abort since then has not seen the read.
        self._check_not_aborted(obj_id)
        return read

    def abort(self, obj_id: str) -> None:
        """Ends the receives of an object, also one that is still to come. At its source others may
        still read, so nothing happens there."""
        with self._lock:
            if obj_id in self._exposed:
                return
            reads = list(self._reads.get(obj_id, ()))
            if not reads:
                self._aborted[obj_id] = None
                while len(self._aborted) > MOST_ABORTED:
                    self._aborted.popitem(last=False)
        for read in reads:
            read.cancel()

    def stats(self) -> dict[str, Any]:
        with self._lock:
            endpoint = self._endpoint
        found = {} if endpoint is None else endpoint.stats()
        return {**found, "pool": pool.use()}

    def _check_not_aborted(self, obj_id: str) -> None:
        with self._lock:
            if obj_id not in self._aborted:
                return
            del self._aborted[obj_id]
        raise failure(f"the transfer of {obj_id} was aborted")


def failure(message: str) -> RayDirectTransportError:
    return RayDirectTransportError(message)  # type: ignore[no-untyped-call]


_process = Process()


def process() -> Process:
    return _process


def _forget_in_child() -> None:
    global _process
    _process = Process()


os.register_at_fork(after_in_child=_forget_in_child)


def _release(endpoint: Endpoint, descriptors: queue.SimpleQueue[bytes | None]) -> None:
    while (descriptor := descriptors.get()) is not None:
        try:
            endpoint.release(descriptor)
        except RuntimeError:  # it was closed, and with it everything released
            return


def _pooled(tensor: Any) -> Any:
    copy = pool.empty(tensor.shape, tensor.dtype)
    copy[...] = tensor.detach() if hasattr(tensor, "detach") else tensor
    return copy


def _session() -> str:
    """What the next ``ray.init`` changes: the first driver of every cluster has the same id."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    return f"{context.get_node_id()} {context.get_worker_id()}"


def _name() -> str:
    """How errors elsewhere call this process."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    actor = context.get_actor_id()
    if actor is None:
        return "Ray driver" if context.worker.mode == ray.SCRIPT_MODE else "Ray worker"
    return f"Ray actor {context.get_actor_name() or actor}"


def on_network(make: Callable[[str], T]) -> T:
    """Made with the address of this node; without one, for this host only, if that cannot be."""
    bind = _core.variable("TENSORBUS_BIND")
    if bind is None:
        bind = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    try:
        return make(bind)
    except (RuntimeError, ValueError) as error:
        made = make("")  # what fails here too has nothing to do with the network
        logger.warning("no network, other nodes cannot be reached: %s", error)
        return made
