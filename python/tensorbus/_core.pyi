"""
The C++ core of tensorbus. Use the tensorbus package; this module is private.
"""

from collections.abc import Sequence
from typing import overload


version: str = '0.1.0'

def set_log_level(level: str) -> None:
    """
    Which records reach logging.getLogger("tensorbus"): trace, debug, info, warn or error.
    """

def stats() -> dict[str, list[tuple[dict[str, str], object]]]:
    """By name, each series with its labels."""

class TraceFile:
    """See tensorbus.trace."""

    @property
    def path(self) -> str: ...

    def flush(self) -> None: ...

def open_trace(folder: str) -> TraceFile: ...

class Cancellation:
    """Ends a blocked call from another thread."""

    def __init__(self) -> None: ...

    def cancel(self) -> None: ...

    @property
    def cancelled(self) -> bool: ...

class Watch:
    def next(self, scope: KeyScope, timeout: float | None = None, cancellation: Cancellation | None = None) -> tuple[bool, str, bytes | None, int]:
        """(is a put, key, value, revision) of the next change."""

    def close(self) -> None: ...

class Lease:
    @property
    def alive(self) -> bool: ...

    @property
    def time_to_live(self) -> float: ...

    def refresh(self, timeout: float | None) -> None: ...

    def revoke(self, timeout: float | None) -> None: ...

class Capabilities:
    """What a backend can do beyond what all can."""

    @property
    def leases(self) -> bool: ...

    @property
    def watches(self) -> bool: ...

    @property
    def server_waits(self) -> bool:
        """Waits are woken by the server, and patterns need no candidate keys."""

    @property
    def exactly_once(self) -> bool:
        """A change sent again after a reconnect applies once."""

    @property
    def max_value_size(self) -> int: ...

class Store:
    """A store of the C++ core; use tensorbus.kvstore."""

    @property
    def url(self) -> str: ...

    def capabilities(self) -> Capabilities: ...

    def set(self, scope: KeyScope, key: str | None, value: str | bytes | bytearray | memoryview | None, timeout: float | None, lease: Lease | None = None) -> None: ...

    def multi_set(self, scope: KeyScope, values: Sequence[tuple[str, str | bytes | bytearray | memoryview]], timeout: float | None, lease: Lease | None = None) -> None: ...

    def get(self, scope: KeyScope, key: str, timeout: float | None) -> bytes | None: ...

    def multi_get(self, scope: KeyScope, keys: Sequence[str], timeout: float | None) -> list[bytes | None]: ...

    def exists(self, scope: KeyScope, key: str | None, timeout: float | None) -> bool: ...

    def erase(self, scope: KeyScope, key: str | None, timeout: float | None) -> bool: ...

    def add(self, scope: KeyScope, key: str | None, amount: int, timeout: float | None) -> int: ...

    def compare_and_set(self, scope: KeyScope, key: str, expected: str | bytes | bytearray | memoryview | None, desired: str | bytes | bytearray | memoryview, timeout: float | None) -> tuple[bool, bytes | None]: ...

    def list_keys(self, scope: KeyScope, prefix: str, timeout: float | None) -> list[str]: ...

    def wait_for_key(self, scope: KeyScope, key: str | None, timeout: float | None, cancellation: Cancellation | None = None) -> bytes: ...

    def wait_for_value(self, scope: KeyScope, key: str | None, value: str | bytes | bytearray | memoryview | None, timeout: float | None, cancellation: Cancellation | None = None) -> bytes: ...

    def wait_for_keys(self, scope: KeyScope, pattern: str, count: int, value: str | bytes | bytearray | memoryview | None, candidates: Sequence[str], timeout: float | None, cancellation: Cancellation | None = None) -> list[str]: ...

    def barrier(self, scope: KeyScope, name: str | None, count: int, member: str, timeout: float | None, cancellation: Cancellation | None = None) -> None: ...

    def watch(self, scope: KeyScope, prefix: str | None, current: bool, timeout: float | None) -> Watch: ...

    def lease(self, time_to_live: float, keep_alive: bool, timeout: float | None) -> Lease: ...

    def join(self, timeout: float | None) -> None: ...

    def close(self, cleanup: bool) -> None: ...

class KeyScope:
    """Full names of keys: namespace/component/key."""

    def __init__(self, namespace: str, component: str) -> None: ...

class StoreUrl:
    """A parsed store URL."""

    @staticmethod
    def parse(url: str) -> StoreUrl: ...

    def namespace_or(self, given: str) -> str:
        """
        The URL's namespace, else the given one; ValueError if they contradict each other.
        """

    def __str__(self) -> str: ...

def connect(url: StoreUrl, timeout: float | None, token: str | None = None) -> Store: ...

def connect_tcp(host: str, port: int, timeout: float | None) -> Store:
    """Our protocol if the server speaks it, else torch's."""

POLL_INTERVAL: float = 0.001

def variable(name: str) -> str | None:
    """An environment variable; None if it is not set or empty."""

class StoreServerStats:
    """Counters of a store server."""

    @property
    def connections(self) -> int:
        """Open now."""

    @property
    def accepted(self) -> int:
        """Connections accepted so far."""

    @property
    def requests(self) -> int: ...

    @property
    def refused(self) -> int:
        """Requests that were malformed or too large."""

    @property
    def keys(self) -> int: ...

    @property
    def waits(self) -> int:
        """Waits and barrier places that are blocked now."""

    @property
    def revision(self) -> int: ...

    @property
    def request_p50_us(self) -> float:
        """Time inside the server."""

    @property
    def request_p99_us(self) -> float: ...

class StoreServer:
    """
    A store server on a thread of this process, for our clients and torch's.

    It listens on exactly `host`; `port` 0 picks a free one. With `journal` (a path) a restarted server has lost nothing that it acknowledged. With a `token` (default: TENSORBUS_TOKEN) clients must prove that they know it; torch's cannot, and are admitted only with `allow_torch`.
    """

    def __init__(self, host: str = '127.0.0.1', port: int = 29500, *, journal: str = '', token: str | None = None, allow_torch: bool = False) -> None: ...

    @property
    def port(self) -> int: ...

    @property
    def url(self) -> str:
        """What clients connect to."""

    def stats(self) -> StoreServerStats: ...

    def wait_for_workers(self, count: int, timeout: float | None = None) -> None:
        """Blocks until `count` clients have joined, ours or torch's."""

    def stop(self) -> None:
        """Stops accepting, sends what is owed, closes. Twice is fine."""

    def __enter__(self) -> StoreServer: ...

    def __exit__(self, *exception: object) -> None: ...

class Replicate:
    """Every rank of the mesh dimension holds the same."""

    def __init__(self) -> None: ...

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class Shard:
    """
    The tensor dimension `dim` is cut over the mesh dimension into chunks of ceil(size / ranks), so that
    later ranks may get less or nothing. A negative `dim` counts from the end.
    """

    def __init__(self, dim: int) -> None: ...

    @property
    def dim(self) -> int: ...

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class StridedShard:
    """
    The dimension is cut into `split_factor` pieces and each of them over the mesh dimension: a rank
    holds a part of every piece, one after the other. torch's _StridedShard.
    """

    def __init__(self, dim: int, split_factor: int) -> None: ...

    @property
    def dim(self) -> int: ...

    @property
    def split_factor(self) -> int: ...

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class Partial:
    """
    Each rank of the mesh dimension holds a value of every element; `reduce_op` over them is the tensor:
    sum, avg, max, min or product. For sources only.
    """

    def __init__(self, reduce_op: str = 'sum') -> None: ...

    @property
    def reduce_op(self) -> str: ...

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class Layout:
    def __init__(self, mesh_shape: Sequence[int], placements: Sequence[Replicate | Shard | StridedShard | Partial], ranks: Sequence[int] | None = None) -> None: ...

    @staticmethod
    def parse(text: str) -> Layout:
        """
        From the text form SHAPE:P,...[@ranks], for example "4x2:S0,R" or "2:P.avg@8,9"; P is R, S<dim>,
        SS<dim>/<split factor> or P[.op].
        """

    @property
    def mesh_shape(self) -> tuple[int, ...]: ...

    @property
    def ranks(self) -> list[int]:
        """In row-major order of the mesh."""

    @property
    def placements(self) -> list[Replicate | Shard | StridedShard | Partial]: ...

    def local_shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """
        The shape of what `rank` holds of a tensor of the global shape `shape`.
        """

    def slices(self, shape: Sequence[int], rank: int) -> tuple[slice | tuple[slice, ...], ...]:
        """
        Which indices of each dimension `rank` holds: a slice, so that `tensor[slices]` is the local tensor, or,
        after a StridedShard, a tuple of slices whose concatenation it is.
        """

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class Piece:
    """
    One overlap: what a target rank reads of a tensor from one source, or reduces from a group of them.
    """

    @property
    def target(self) -> int: ...

    @property
    def sources(self) -> list[int]:
        """
        The rank to copy from, or the ranks to reduce, in the order of the folds.
        """

    @property
    def folds(self) -> list[tuple[str, int]]:
        """
        (operation, count): the first reduces each `count` neighbours of `sources` to one value, the next
        each `count` of those, down to one. Empty for a copy.
        """

    @property
    def source_slices(self) -> tuple[slice | tuple[slice, ...], ...]:
        """The region in the source's local tensor, as Layout.slices() gives it."""

    @property
    def target_slices(self) -> tuple[slice | tuple[slice, ...], ...]:
        """The region in the target's local tensor."""

    @property
    def elements(self) -> int: ...

    def __repr__(self) -> str: ...

class Plan:
    """Who reads what of one tensor from whom. Made by plan()."""

    @property
    def source(self) -> Layout: ...

    @property
    def target(self) -> Layout: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def target_dtype(self) -> str: ...

    @property
    def wire_dtype(self) -> str:
        """The narrower of the two; the source's when it reduces."""

    def pieces(self, target_rank: int) -> list[Piece]:
        """What a target rank reads."""

    def serves(self, source_rank: int) -> list[Piece]:
        """What a source rank serves: the same pieces, seen from the other side."""

    def bytes_between(self) -> dict[tuple[int, int], int]:
        """{(source rank, target rank): bytes that cross the wire}."""

    def summary(self, link: float | None = None) -> str:
        """
        A table of bytes, peers and pieces per rank. `link` in GB/s per rank adds a time.
        """

    def to_json(self, link: float | None = None) -> str:
        """The summary and all pieces, as text."""

    def to_svg(self) -> str:
        """A picture of who sends what to whom."""

    def __repr__(self) -> str: ...

def make_plan(source: Layout, target: Layout, shape: Sequence[int], dtype: str, target_dtype: str, source_hosts: Sequence[str], target_hosts: Sequence[str]) -> Plan: ...

class Tensors:
    """Tensors as the core sees them; borrows their memory."""

    def __init__(self, tensors: list[object], names: list[str] | None = None, stream: object = None) -> None:
        """
        `names` are what errors call them; `stream` is the one that those on CUDA devices were used on, None the current one.
        """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[int, str, tuple[int, ...], tuple[int, ...], bool]:
        """(address, dtype, shape, strides, read-only)"""

def redistribute(source: Layout, source_tensors: dict[int, object], target: Layout, target_tensors: dict[int, object]) -> None:
    """
    Every rank of a layout has one local tensor. See tensorbus.redistribute.
    """

def redistribute_boxes(shape: Sequence[int], source_tensors: list[object], source_places: list[tuple[int, list[int]]], target_tensors: list[object], target_places: list[tuple[int, list[int]]]) -> list[tuple[int, list[int], list[int]]]:
    """
    Ranks may have several boxes of the whole. Places are (rank, start); returns what nobody holds, as
    (target rank, start, shape).
    """

class PooledTensor:
    """Memory of the pool on its way into numpy."""

    def __dlpack__(self, **kwargs: object) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

def empty(wanted: list[tuple[list[int], str, bool]]) -> list[object]:
    """
    Tensors side by side in one block: shape, type, whether it is to be torch's.
    """

def is_pooled(tensor: object) -> bool:
    """Whether a tensor's first element lies in this process' pool."""

def pool_use() -> tuple[int, int]:
    """
    Bytes that the pool has from the operating system, and bytes that tensors hold of it.
    """

def trim_pool() -> None:
    """Gives memory that no tensor uses back to the operating system."""

class Read:
    def done(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> list[object]: ...

    def cancel(self) -> None: ...

    def settle(self) -> None: ...

    def fileno(self) -> int: ...

    @property
    def path(self) -> str: ...

class Endpoint:
    def __init__(self, name: str, secret: bytes | None, secret_in_descriptors: bool, bind: str, first_port: int, last_port: int, metrics: str | None = None) -> None: ...

    def expose(self, tensors: Sequence[object], frozen: bool, stream: object) -> bytes: ...

    def release(self, descriptor: bytes) -> bool: ...

    def read(self, descriptor: bytes, into: Sequence[object] | None, torch: bool, timeout: float | None, parts: Sequence[tuple[int, Sequence[int]]] | None, stream: object) -> Read: ...

    def stats(self) -> dict[str, object]: ...

    def close(self) -> None: ...

def describe(descriptor: bytes) -> list[tuple[str, tuple[int, ...]]]:
    """(dtype, shape) of every tensor that a descriptor describes."""

def shared_secret(store: Store, scope: KeyScope, key: str, timeout: float | None) -> bytes:
    """The secret that all clients of a store share under this key."""

class BusParting:
    def done(self) -> bool: ...

class BusTransfer:
    """See tensorbus.client.Transfer."""

    def done(self) -> bool: ...

    def wait(self, timeout: float | None) -> None: ...

    def result(self, timeout: float | None) -> tuple[int, dict[int, str], dict[str, int]]:
        """(round, readers, bytes by path)"""

    def acquire(self, timeout: float | None) -> bool:
        """False if the time has passed."""

    def release(self) -> None: ...

    def unlink(self) -> None: ...

    def value(self) -> int: ...

    def name(self, timeout: float | None) -> str: ...

    def cancel(self, why: str) -> None: ...

    def progress(self) -> tuple[int, int]: ...

    def fd(self) -> int:
        """Readable when it is over."""

class BusClient:
    """See tensorbus.TensorBusClient."""

    @overload
    def __init__(self, queue_path: str, state_path: str, namespace: str, rank: int, timeout: float | None, copy_threads: int | None = None) -> None: ...

    @overload
    def __init__(self, store: Store, rank: int | None, namespace: str, bind: str, ports: tuple[int, int], timeout: float | None, copy_threads: int | None = None, metrics: str | None = None) -> None: ...

    @property
    def rank(self) -> int: ...

    @property
    def copy_threads(self) -> int:
        """How many threads a copy of this rank takes now, the caller's included."""

    def init_pair(self, pair: str, local: str, remote: str, world_size: int, mesh: Sequence[int] | None, placements: Sequence[Replicate | Shard | StridedShard | Partial], coordinate: Sequence[int] | None, blocking: bool, timeout: float | None) -> None: ...

    def register_tensors(self, batch: str, tensors: list[object], items: list[tuple[str, str]], global_shapes: list[Sequence[int] | None], chunk_bytes: int | None, role: str | None, verify: str | None, timeout: float | None) -> int: ...

    def transfer(self, batch: str, send: bool, role: str | None, tensors: Tensors, blocking: bool, timeout: float | None) -> BusTransfer: ...

    def query_signal(self, batch: str, wait: bool, round: int | None, role: str | None, timeout: float | None) -> bool: ...

    def close_batch(self, batch: str, registration: int, timeout: float | None) -> None: ...

    def drop_batch(self, batch: str, registration: int) -> BusParting: ...

    def registration_of(self, batch: str, role: str | None = None) -> int:
        """0 if there is none."""

    def queue(self, timeout: float | None) -> tuple[int, tuple[str, str] | None]:
        """(size, (type, context) of the first)"""

    @property
    def agent_pid(self) -> int: ...

    def abandon(self, timeout: float | None) -> BusParting:
        """Closes it on another thread."""

    def close(self, timeout: float | None) -> bool: ...

class BusAgent:
    """See tensorbus.agent.TensorBusAgent."""

    def __init__(self, store: Store, rank: int, namespace: str, queue_path: str, state_path: str, bind: str, timeout: float | None) -> None: ...

    def run(self) -> None:
        """Until stop() or Ctrl-C."""

    def step(self) -> None: ...

    def stop(self) -> None: ...

    def close(self, destroy: bool) -> None: ...

def default_queue_path(rank: int) -> str:
    """
    Where the commands of this rank's agent are unless somebody says otherwise.
    """

def default_state_path(rank: int) -> str:
    """
    Where the state of this rank's agent is unless somebody says otherwise.
    """

def check_agent_file(file: int, path: str) -> None:
    """Raises unless the open file is an agent's of this user, and whole."""

def semaphore_name(command_type: str, context_id: str) -> str: ...

def allow_ptrace(pid: int) -> bool:
    """
    Lets a process (-1: any) read our memory, where Yama asks; False without.
    """

class LinkForm:
    """What tensors hold of the whole; see tensorbus.state_dict."""

    def __init__(self, names: list[str], wholes: list[Sequence[int] | None], layouts: Sequence[object], starts: list[Sequence[int] | None]) -> None: ...

class LinkCall:
    """One call of a link: its place in the queue."""

    def cancel(self) -> None: ...

    def progress(self) -> tuple[int, int]:
        """(bytes done, bytes in all)"""

    def staged(self) -> bool: ...

    def wait_until_staged(self, timeout: float | None) -> bool:
        """False if the time has passed."""

    def readers(self) -> dict[int, str]: ...

    def places(self) -> list[int] | None:
        """Which tensors got a place in a stage, if this call has made one."""

    def leave(self) -> None:
        """It is over, whether or not it had its turn."""

class BusLink:
    """See tensorbus.Link."""

    def __init__(self, client: BusClient, local: str, remote: str | None, world_size: int, verify: str | None, promises: bool, delta_memory: int | None, verify_every: int) -> None: ...

    def begin(self, name: str, send: bool, shelf: bool) -> LinkCall:
        """Takes the next place in the queue of a name."""

    def take_turn(self, call: LinkCall, timeout: float | None) -> None:
        """For callers that have something to do in their turn before the call."""

    def refuse(self, call: LinkCall, why: str, timeout: float | None) -> None:
        """Tells the others that this rank has nothing that can be moved."""

    def close(self, timeout: float | None) -> None: ...

    def send(self, call: LinkCall, form: LinkForm, tensors: Tensors, held: object, version: int | None, timeout: float | None, allow_lost: bool, min_readers: int) -> int: ...

    def recv(self, call: LinkCall, form: LinkForm, tensors: Tensors, held: object, version: int | None, timeout: float | None, subset: bool) -> int: ...

    def publish(self, call: LinkCall, form: LinkForm, tensors: Tensors, version: int | None, keep: int, dtype: str | None, patience: float, withdraw: bool, delta: str, timeout: float | None) -> int: ...

    def pull(self, call: LinkCall, form: LinkForm, tensors: Tensors, held: object, version: int | None, newer_than: int | None, together: bool, timeout: float | None, subset: bool, overwritten: bool, part: str, scratch: bool) -> int: ...

    def newest(self, name: str, timeout: float | None) -> int:
        """0 if there is none."""

    def versions(self, name: str, timeout: float | None) -> dict[str, dict[int, int]]: ...

    def contents(self, name: str, timeout: float | None) -> list[tuple[str, tuple[int, ...], str]]:
        """(name, shape, dtype) of whole tensors; waits for the first version."""

    def last_send(self, name: str) -> tuple[int, dict[int, str]] | None:
        """(version, readers)"""

    def last_update(self, name: str) -> tuple[int, str, int, int, int, float, float, float, float, bool] | None:
        """
        (version, why, elements, values, patch bytes, seconds to ask, to fetch, to apply, to verify, whether it was)
        """

    def registration(self, name: str, send: bool) -> int:
        """0 if there is none."""

    def is_busy(self, name: str, send: bool) -> bool:
        """Whether a call has its turn."""

    def give_place(self, name: str, tensor: Tensors, torch: bool) -> object:
        """A tensor's place in the stage, with its contents; None if it has none."""

class PushPullEnvironment:
    """What DMLC_* and STEPMESH_* say."""

    @staticmethod
    def read() -> PushPullEnvironment: ...

    @property
    def role(self) -> str: ...

    @property
    def timeout(self) -> float:
        """Seconds."""

class PushPullScheduler:
    def __init__(self, environment: PushPullEnvironment) -> None: ...

    def stop(self, timeout: float | None) -> None: ...

class PushPullRequest:
    """A request that is made once and sent often."""

class PushPullWorker:
    def __init__(self, environment: PushPullEnvironment) -> None: ...

    def barrier(self, servers: bool, workers: bool, all_lanes: bool, timeout: float | None) -> None: ...

    def stop(self, timeout: float | None) -> None: ...

    def push_pull(self, push_tensors: object, push_keys: object, pull_tensors: object, pull_keys: object, timeout: float | None) -> int: ...

    def prepare(self, push_tensors: object, push_keys: object, pull_tensors: object, pull_keys: object) -> PushPullRequest: ...

    def push_pull_prepared(self, request: PushPullRequest, timeout: float | None) -> int: ...

    def wait(self, handler: int, timeout: float | None) -> None: ...

    def handlers(self, handler: int) -> list[int]: ...

    def trace(self, handler: int, server: int | None) -> list[int]: ...

    def counts(self) -> dict[str, int]: ...

class PushPullServer:
    def __init__(self, environment: PushPullEnvironment) -> None: ...

    def barrier(self, servers: bool, workers: bool, all_lanes: bool, timeout: float | None) -> None: ...

    def stop(self, timeout: float | None) -> None: ...

    def get_batch[T](self, timeout: float | None, workers: object, batch_type: type[T]) -> list[T]: ...

    def respond(self, tensors: object, handler: int) -> None: ...

    def respond_vec(self, buffer: object, tensors: object, handlers: object, every_from_row_0: bool) -> None: ...

    def register_buffer(self, tensor: object, workers: object, keys: object) -> None: ...

    def counts(self) -> dict[str, int]: ...

def push_pull_clock() -> int:
    """Nanoseconds, as traces have them."""
