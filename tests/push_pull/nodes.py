"""Push-pull jobs of real processes, told from the test what to do.

Every node is a process of its own that runs functions of the test modules, one at a time. They are
forked from a server that has imported torch, since importing it takes longer than most tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from processes import eventually, free_port, is_stopped
from torch.distributed import TCPStore
from two_hosts import ADDRESSES, TwoHosts

PATIENCE = 30.0

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_SLAVE_REC = (1 << 19) | 16384


def _enter_namespace(pid: int) -> None:
    """The network of another process. /sys is mounted anew: UCX looks for devices there."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    for result in (
        libc.setns(descriptor, CLONE_NEWNET),
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"", b"/", b"none", MS_SLAVE_REC, None),
        libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None),
    ):
        if result != 0:
            raise OSError(ctypes.get_errno(), "entering a network namespace")
    os.close(descriptor)


def _run(connection: Connection, environment: dict[str, str], namespace: int | None) -> None:
    """The life of a node."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever was inherited
    if namespace is not None:
        _enter_namespace(namespace)
    while True:
        try:
            function, arguments, options = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, function(*arguments, **options))
        except BaseException as error:
            bases = [base.__name__ for base in type(error).__mro__]
            answer = (False, (bases, str(error), traceback.format_exc()))
        connection.send(answer)


class NodeError(Exception):
    """What a node raised; `kinds` are the names of its type and bases."""

    def __init__(self, kinds: list[str], message: str, trace: str) -> None:
        super().__init__(f"{kinds[0]}: {message}\n{trace}")
        self.kinds = kinds
        self.message = message


class Node:
    """A process. `start` and `result`, or both in one call."""

    def __init__(self, name: str, environment: dict[str, str], namespace: int | None) -> None:
        context = multiprocessing.get_context("forkserver")
        self.name = name
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, environment, namespace))
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Node:
        self._connection.send((function, arguments, options))
        return self

    def done(self, timeout: float = 0.0) -> bool:
        return self._connection.poll(timeout)

    def result(self, timeout: float = PATIENCE) -> Any:
        assert self._connection.poll(timeout), f"{self.name} gives no result in {timeout} s"
        try:
            well, value = self._connection.recv()
        except EOFError:
            raise AssertionError(f"{self.name} died") from None
        if well:
            return value
        raise NodeError(*value)

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return self.start(function, *arguments, **options).result()

    def error(self, timeout: float = PATIENCE) -> NodeError:
        """What the call that was started raises."""
        try:
            value = self.result(timeout)
        except NodeError as raised:
            return raised
        raise AssertionError(f"{self.name} raised nothing but returned {value}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            eventually(lambda: is_stopped(self.pid), "the process to stop")

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._connection.close()


class Job:
    """A scheduler, servers and workers; not yet told to do anything."""

    def __init__(
        self,
        workers: int,
        servers: int,
        *,
        group_size: int = 1,
        hosts: TwoHosts | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        address = "127.0.0.1" if hosts is None else ADDRESSES[0]
        self.common = {
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_GROUP_SIZE": str(group_size),
            "DMLC_PS_ROOT_URI": address,
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "TENSORBUS_INIT_TIMEOUT": "30",
            **(environment or {}),
        }
        self.all: list[Node] = []
        self._hosts = hosts
        self._group_size = group_size
        self.scheduler = self.add("scheduler", 0)
        self.servers = [self.add("server", rank) for rank in range(servers * group_size)]
        self.workers = [self.add("worker", rank) for rank in range(workers * group_size)]

    def add(self, role: str, rank: int, **environment: str) -> Node:
        """Another process. Servers are on the second host if there are two."""
        own = {
            "DMLC_ROLE": role,
            "DMLC_NODE_RANK": str(rank // self._group_size),
            "STEPMESH_GPU": str(rank % self._group_size),
        }
        namespace = None
        if self._hosts is not None:
            namespace = self._hosts.pids[1 if role == "server" else 0]
        node = Node(f"{role} {rank}", self.common | own | environment, namespace)
        self.all.append(node)
        return node

    def await_members(self, *nodes: Node) -> None:
        """Until the scheduler's store knows these, though the job may lack others."""
        store = self.store()
        for node in nodes:
            place = self.place(store, node)
            eventually(lambda at=place: not store.get(at).startswith(b"?"), node.name, PATIENCE)

    def store(self) -> TCPStore:
        """The scheduler's."""
        host, port = self.common["DMLC_PS_ROOT_URI"], int(self.common["DMLC_PS_ROOT_PORT"])
        return TCPStore(host, port, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))

    @staticmethod
    def place(store: TCPStore, node: Node) -> str:
        """The key of its record, which is a mark until the rank is its own."""
        # The record begins with its title, its version and the length of the job's name.
        begin = len("tensorbus push-pull job") + 2
        job = store.get("push_pull/job")[begin : begin + 32].decode()
        return f"push_pull/{job}/member/{node.name.replace(' ', '/')}"

    def init(self) -> Job:
        import roles

        for node in self.all:
            node.start(roles.init)
        for node in self.all:
            node.result()
        return self

    def stop(self) -> None:
        """In order, everybody."""
        import roles

        for node in self.all:
            node.start(roles.stop)
        for node in self.all:
            node.result()

    def kill(self) -> None:
        for node in self.all:
            node.kill()


@contextlib.contextmanager
def fork_server() -> Iterator[None]:
    """While it is there nodes can be started; nothing of it is left afterwards."""
    multiprocessing.set_forkserver_preload(["torch", "torch.distributed.tensor", "pytest"])
    try:
        yield
    finally:
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
        multiprocessing.resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
        multiprocessing.util._run_finalizers()  # the folder of its socket
