"""A worker's side of the bus: pairs, batches and transfers, through the agent of its rank."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Sequence
from typing import Any, Literal

from tensorbus import _core
from tensorbus.command_queue import CommandQueue
from tensorbus.dtensor import check_layout, dtensor_types, global_shapes, local_parts
from tensorbus.environment import own_copy_threads, own_namespace, own_rank, store_url
from tensorbus.extras import need
from tensorbus.kvstore import CoreStore, connect
from tensorbus.layout import coordinate_of, mesh_of, placement_of
from tensorbus.link import Link
from tensorbus.parting import keep_until
from tensorbus.paths import bind_address, command_queue_path, state_path
from tensorbus.transfer import Transfer

__all__ = ["BatchHandler", "TensorBusClient", "generate_semaphore_name", "logger"]

logger = logging.getLogger("tensorbus")

TransferType = Literal["send", "recv"]
# How long close() waits for the agent to let go of tensors.
_CLOSING_TIME = 2.0
_open: weakref.WeakSet[TensorBusClient] = weakref.WeakSet()


def generate_semaphore_name(command_type: str, context_id: str) -> str:
    """A new name ``/command_<type>_<context>_<pid>_<unique>`` of at most 250 bytes."""
    return _core.semaphore_name(command_type, context_id)


class TensorBusClient:
    """Connects a worker to the agent of rank ``agent_rank``.

    The agent is found by its files: ``lmdb_command_queue_path`` and ``agent_state_lmdb_path``, else
    ``TENSOR_BUS_COMMAND_QUEUE_PATH`` and ``TENSOR_BUS_STATE_PATH``, else
    ``agent_rank{N}_command.lmdb`` and ``agent_rank{N}_state.lmdb`` in ``TENSORBUS_STATE_DIR`` (else
    ``/tmp``). ``namespace`` must be the agent's (default: ``TENSORBUS_NAMESPACE``, else
    ``"default"``). ``copy_threads`` are the threads that copy for this worker, 1 to 8 (default:
    ``TENSORBUS_COPY_THREADS``, else as many as its agent takes). Raises ``ConnectionError`` if no
    such agent answers within ``connection_timeout``.

    All methods are thread safe, release the GIL and obey Ctrl-C. A ``timeout`` of ``None`` is for
    ever. Errors are those of the agent, with its message: ``ValueError``, ``TimeoutError``,
    ``ConnectionError``, ``tensorbus.PeerLostError``, ``RuntimeError``.
    """

    def __init__(
        self,
        agent_rank: int,
        lmdb_command_queue_path: str | None = None,
        agent_state_lmdb_path: str | None = None,
        connection_timeout: float = 30.0,
        *,
        namespace: str | None = None,
        copy_threads: int | None = None,
    ) -> None:
        if agent_rank < 0:
            raise ValueError(f"agent_rank is {agent_rank}; ranks are 0 or more")
        queue = command_queue_path(agent_rank, lmdb_command_queue_path)
        state = state_path(agent_rank, agent_state_lmdb_path)
        space = own_namespace(namespace)
        core = _core.BusClient(
            queue, state, space, agent_rank, connection_timeout, own_copy_threads(copy_threads)
        )
        self._set_up(core, agent_rank, space, state)

    @classmethod
    def embedded(
        cls,
        store: str | CoreStore | None = None,
        rank: int | None = None,
        namespace: str | None = None,
        *,
        connection_timeout: float = 30.0,
        bind: str | None = None,
        ports: tuple[int, int] = (0, 0),
        copy_threads: int | None = None,
        metrics: str | None = None,
    ) -> TensorBusClient:
        """A client with an agent of its own, on a thread of this process and without files.

        ``store`` (default: ``TENSORBUS_STORE``) is a URL or a store of ``tensorbus.kvstore`` that
        has leases and watches: all but torch's own server. ``rank`` (default: ``AGENT_RANK``, else
        a free one from 1,000 on) is unique among the agents of the namespace, which is the one in
        the URL, else ``namespace``, else that of the given store unless it is ``"default"``, else
        ``TENSORBUS_NAMESPACE``. Ranks that fill a mesh in ascending order must be given.
        ``bind`` (default: ``TENSORBUS_BIND``) is the address of this machine on which agents of
        other hosts reach it; without one it serves this host only. ``ports`` are the first and
        the last that it may listen on there (default: ``TENSORBUS_PORTS``, or any).
        ``copy_threads`` are the threads that copy for this rank, the caller's included, 1 to 8
        (default: ``TENSORBUS_COPY_THREADS``, else the cores that this process may use, divided by
        the agents of this host). ``metrics`` (default: ``TENSORBUS_METRICS``) is the ``HOST:PORT``
        of a page with this process's metrics, for Prometheus; port 0 picks a free one.
        """
        rank = own_rank(rank)
        threads = own_copy_threads(copy_threads)
        own_store = None
        if not isinstance(store, CoreStore):
            own_store = connect(
                store_url(store), timeout=connection_timeout, namespace=namespace or "default"
            )
            store = own_store
        told = store.namespace if own_store is not None or not namespace else namespace
        space = own_namespace(namespace) if told == "default" else told
        client = cls.__new__(cls)
        try:
            core = _core.BusClient(
                store._core,
                rank,
                space,
                bind_address(bind),
                ports,
                connection_timeout,
                threads,
                metrics,
            )
        except BaseException:
            if own_store is not None:
                own_store.close()
            raise
        client._set_up(core, core.rank, space, None, own_store)
        return client

    def _set_up(
        self,
        core: _core.BusClient,
        rank: int,
        namespace: str,
        state: str | None,
        own_store: CoreStore | None = None,
    ) -> None:
        self._core = core
        self._own_store = own_store
        self._closed = False
        self._layouts: dict[str, tuple[list[int], list[Any]]] = {}
        self._held: dict[int, tuple[str, list[Any]]] = {}  # by registration: batch, tensors
        self._state: tuple[Any, Any] | None = None
        self.agent_rank = rank
        self.namespace = namespace
        self.agent_state_lmdb_path = state
        self.command_queue = CommandQueue(core)
        _open.add(self)

    @property
    def copy_threads(self) -> int:
        """How many threads a copy of this rank takes now, the caller's included.

        Unless ``copy_threads`` was given it changes when agents come to this host or go.
        """
        self._check_open()
        return self._core.copy_threads

    @property
    def state_env(self) -> Any:
        """The agent's state as an ``lmdb.Environment``, read-only; None if it is embedded."""
        return self._open_state()[0]

    @property
    def state_db(self) -> Any:
        """The table of ``state_env`` that holds the state; None if it is embedded."""
        return self._open_state()[1]

    def _open_state(self) -> tuple[Any, Any]:
        if self.agent_state_lmdb_path is None:
            return None, None
        if self._state is None:
            lmdb = need("lmdb", "looking into an agent's state")
            look = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(self.agent_state_lmdb_path, look)
            try:
                _core.check_agent_file(file, self.agent_state_lmdb_path)
                same = f"/proc/self/fd/{file}"
                env = lmdb.open(same, subdir=False, readonly=True, lock=False)
            finally:
                os.close(file)
            self._state = env, env.open_db(create=False)
        return self._state

    def init_pair(
        self,
        pair_name: str,
        local_name: str,
        remote_name: str,
        expected_world_size: int,
        device_mesh: Any = None,
        placements: Sequence[Any] | None = None,
        blocking: bool = True,
        timeout: float | None = 30.0,
    ) -> None:
        """Joins the side ``local_name`` of a pair and waits until both sides are complete.

        ``expected_world_size`` is the number of ranks of this side. ``device_mesh`` is a torch
        ``DeviceMesh`` (then each rank says where it is), a shape, or anything with ``.mesh.shape``
        (then the ranks fill it in ascending order); ``placements`` are torch's or ours. Without
        both, on both sides, ranks are joined one to one. With ``blocking=False`` the first later
        call that names the pair waits for it.
        """
        self._check_open()
        if (device_mesh is None) != (placements is None):
            raise ValueError(f'pair "{pair_name}": give device_mesh and placements, or neither')
        shape: list[int] | None = None
        own: list[Any] = []
        coordinate = None
        if device_mesh is not None and placements is not None:
            shape = mesh_of(device_mesh)[0]
            own = [placement_of(placement) for placement in placements]
            coordinate = coordinate_of(device_mesh)
        self._core.init_pair(
            pair_name, local_name, remote_name, expected_world_size, shape, own, coordinate,
            blocking, timeout,
        )  # fmt: skip
        if shape is not None:
            self._layouts[pair_name] = shape, own

    def register_tensors(
        self,
        batch_id: str,
        tensors: Sequence[tuple[Any, str] | tuple[Any, str, str]],
        bucket_size: int | None = None,
        timeout: float | None = 30.0,
        *,
        role: str | None = None,
        verify: str | None = None,
    ) -> BatchHandler:
        """Registers the local tensors of a batch, each on one pair, and waits for the other side.

        Items are ``(tensor, pair)`` or ``(tensor, pair, name)``; of a pair all have a name or none.
        Tensors are torch's (DTensors too), numpy's or anything with ``__dlpack__``, in CPU memory
        or, with an embedded agent, on a CUDA device; they are held until the batch is closed.
        ``role`` is the local name meant where this agent has both sides of a pair. ``bucket_size``
        bounds the bytes that are copied in one step.
        ``verify="full"`` compares checksums of all that is read with what was offered (which also
        finds a tensor that was changed after its send), ``"sample"`` of one part in sixteen, other
        parts in every round, ``"first"`` in full until a receiver has read a round; what one side
        asks for holds for both. None: ``"first"`` if a tensor is on a CUDA device, else ``"off"``.
        """
        self._check_open()
        held, items = [], []
        for index, item in enumerate(tensors):
            if not isinstance(item, tuple | list) or len(item) not in (2, 3):
                raise ValueError(
                    f"tensors[{index}] is {item!r:.100}, not (tensor, pair) or (tensor, pair, name)"
                )
            tensor, pair, *name = item
            if isinstance(tensor, dtensor_types()) and pair in self._layouts:
                check_layout(tensor, pair, *self._layouts[pair])
            held.append(tensor)
            items.append((pair, name[0] if name else ""))
        if not held:
            raise ValueError(f'batch "{batch_id}" has no tensors')
        registration = self._core.register_tensors(
            batch_id, local_parts(held), items, global_shapes(held), bucket_size, role, verify,
            timeout,
        )  # fmt: skip
        self._held[registration] = batch_id, held
        names = list(dict.fromkeys(pair for pair, _ in items))
        return BatchHandler(self, batch_id, names, _registration=registration, _role=role)

    def link(
        self,
        local_name: str,
        remote_name: str | None = None,
        expected_world_size: int = 1,
        *,
        verify: str | None = None,
        delta: bool = False,
        delta_memory: int | None = None,
        verify_every: int = 0,
    ) -> Link:
        """A way for state dicts between the ranks called ``local_name``, of which there are
        ``expected_world_size``, and those called ``remote_name``, whom a publisher need not name.

        It connects at the first call. Whoever sends or publishes is called by the same name by all
        its receivers; further ones may come and go.
        ``verify`` is that of ``register_tensors``. ``delta`` promises that nobody else writes to
        the tensors between two pulls, which then may get the changed values only. A publisher
        spends at most ``delta_memory`` bytes on deltas, beside its shelf. With ``verify_every=n``
        every n-th pull that got the changed values only is compared with what the publishers have
        (by ``verify``, or ``"full"``); what differs is read anew, with a warning.
        """
        self._check_open()
        return Link(
            self, local_name, remote_name, expected_world_size, verify, delta, delta_memory,
            verify_every,
        )  # fmt: skip

    def transfer(
        self,
        batch_id: str,
        transfer_type: TransferType,
        blocking: bool = False,
        timeout: float | None = 30.0,
        *,
        role: str | None = None,
        stream: Any = None,
    ) -> Transfer:
        """Starts one round of a batch, or takes part in one, and returns its ``Transfer``.

        A blocking call waits until the round is over and raises its error; past ``timeout`` it
        cancels the round. Without ``blocking``, ``timeout`` bounds only how long the agent may take
        to accept it.

        Of tensors on CUDA devices it waits first, up to ``timeout``, for what the current stream of
        the calling thread, or ``stream``, has been given.
        """
        self._check_open()
        if transfer_type not in ("send", "recv"):
            raise ValueError(f'transfer_type is "send" or "recv", not {transfer_type!r}')
        _, held = self._held.get(self._core.registration_of(batch_id, role), ("", []))
        now = _core.Tensors(local_parts(held), None, stream)
        return Transfer(
            self._core.transfer(batch_id, transfer_type == "send", role, now, blocking, timeout)
        )

    def query_transfer_signal(
        self,
        batch_id: str,
        blocking: bool = True,
        timeout: float | None = 30.0,
        *,
        sync_round: int | None = None,
        role: str | None = None,
    ) -> bool:
        """Whether the sender has published a round that this receiver has not read yet.

        On the sending side: whether its own last round is published. ``sync_round`` asks about that
        round. ``blocking=False`` answers at once from what the agent knows. A blocking call waits
        for True; at its ``timeout`` it returns False, and who is missing is logged (``INFO``). An
        agent that does not answer at all is a ``TimeoutError``.
        """
        self._check_open()
        return self._core.query_signal(batch_id, blocking, sync_round, role, timeout)

    def close(self) -> None:
        """Cancels what runs and releases what is this client's. The agent serves the next one."""
        if self._closed:
            return
        self._closed = True
        if not self._core.close(_CLOSING_TIME):
            logger.warning(
                "agent %d does not answer and may still touch this client's tensors; their memory "
                "is kept",
                self.agent_rank,
            )
            keep_until(None, self._held)
        self._held = {}
        if self._own_store is not None:
            self._own_store.close()
        if self._state is not None:
            self._state[0].close()
            self._state = None

    def _drop(self, registration: int) -> None:
        """Closes a batch without waiting for anything."""
        batch_id, held = self._held.pop(registration, ("", None))
        if held is not None and not self._closed:
            keep_until(self._core.drop_batch(batch_id, registration), held)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this client is closed")

    def __enter__(self) -> TensorBusClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True):
            return
        self._closed = True
        keep_until(self._core.abandon(_CLOSING_TIME), (self._held, self._own_store))


class BatchHandler:
    """A registered batch. Dropping it closes the registration that it came from, and no other."""

    def __init__(
        self,
        client: TensorBusClient,
        batch_id: str,
        pair_names: Sequence[str],
        *,
        _registration: int | None = None,
        _role: str | None = None,
    ) -> None:
        self._client = weakref.ref(client)
        self._role = _role
        self._registration = _registration  # None if built by hand: then it owns nothing
        self._closed = False
        self.batch_id = batch_id
        self.pair_names = list(pair_names)

    @property
    def client(self) -> TensorBusClient:
        client = self._client()
        if client is None:
            raise RuntimeError(f'the client of batch "{self.batch_id}" is gone')
        return client

    def transfer(
        self,
        transfer_type: TransferType,
        blocking: bool = False,
        timeout: float | None = 30.0,
        *,
        role: str | None = None,
    ) -> Transfer:
        """As ``TensorBusClient.transfer``, for this batch."""
        return self._open_client().transfer(
            self.batch_id, transfer_type, blocking, timeout, role=role or self._role
        )

    def query_transfer_signal(
        self,
        blocking: bool = True,
        timeout: float | None = 30.0,
        *,
        sync_round: int | None = None,
        role: str | None = None,
    ) -> bool:
        """As ``TensorBusClient.query_transfer_signal``, for this batch."""
        return self._open_client().query_transfer_signal(
            self.batch_id, blocking, timeout, sync_round=sync_round, role=role or self._role
        )

    def close(self, blocking: bool = True, timeout: float | None = 30.0) -> None:
        """Frees the batch at the agent. The handler cannot be used any more."""
        client = self._client()
        if self._closed or client is None or client._closed:
            self._closed = True
            return
        self._closed = True
        registration = self._registration or client._core.registration_of(self.batch_id, self._role)
        if not blocking:
            client._drop(registration)
            return
        client._core.close_batch(self.batch_id, registration, timeout)
        client._held.pop(registration, None)

    def _open_client(self) -> TensorBusClient:
        if self._closed:
            raise RuntimeError(f'the handler of batch "{self.batch_id}" is closed')
        return self.client

    def __enter__(self) -> BatchHandler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._registration is None:
            return
        client = self._client()
        if client is not None:
            client._drop(self._registration)


# A forked child closes nothing of its parent's.
os.register_at_fork(after_in_child=_open.clear)


@atexit.register
def _close_all() -> None:
    """Before the interpreter takes the tensors away."""
    for client in list(_open):
        client.close()
