"""One of everything that the core has, in one process, with bindings to call on it.

`calls` has an entry for every binding: the arguments of a call that ends soon and harms nobody
else. `blocks` are the calls that block, each for `BLOCKED` seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from tensorbus import _core

Arguments = Callable[[], tuple[Any, ...]]

# Longer than two of the sleeps after which a blocked call looks for Ctrl-C.
BLOCKED = 0.6
SOON = 10.0

SOURCE = """
import os, signal, sys, torch
from tensorbus import _core
endpoint = _core.Endpoint("source", None, True, "", 0, 0)
print(endpoint.expose([torch.ones(4)], False).hex(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def together(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that wait for each other."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result() for future in [threads.submit(call) for call in calls]]


def of_leases(name: str) -> bool:
    return "Watch" in name or "Lease" in name or name in ("Store.watch", "Store.lease")


class Stores:
    """A store with what belongs to it."""

    def __init__(self, url: str) -> None:
        self.scope = _core.KeyScope("house", "bindings")
        self.store = _core.connect(_core.StoreUrl.parse(url), SOON)
        # torch's protocol has neither.
        self.leases = not url.startswith("tcpstore:")
        if self.leases:
            self.watch = self.store.watch(self.scope, "watched", False, SOON)
            self.lease = self.store.lease(30.0, True, SOON)
        self.store.set(self.scope, "key", "value", SOON)

    def calls(self) -> dict[str, Arguments]:
        store, scope = self.store, self.scope
        found: dict[str, Arguments] = {
            "Watch.next": lambda: (self.watch, scope, 0.0),
            "Watch.close": lambda: (store.watch(scope, "w", False, SOON),),
            "~Watch": lambda: (store.watch(scope, "w", False, SOON),),
            "Lease.alive": lambda: (self.lease,),
            "Lease.time_to_live": lambda: (self.lease,),
            "Lease.refresh": lambda: (self.lease, SOON),
            "Lease.revoke": lambda: (store.lease(30.0, False, SOON), SOON),
            "~Lease": lambda: (store.lease(30.0, True, SOON),),
            "Store.url": lambda: (store,),
            "Store.capabilities": lambda: (store,),
            "Store.set": lambda: (store, scope, "key", b"value", SOON),
            "Store.multi_set": lambda: (store, scope, [("key", "value")], SOON),
            "Store.get": lambda: (store, scope, "key", SOON),
            "Store.multi_get": lambda: (store, scope, ["key"], SOON),
            "Store.exists": lambda: (store, scope, "key", SOON),
            "Store.erase": lambda: (store, scope, "none", SOON),
            "Store.add": lambda: (store, scope, "number", 1, SOON),
            "Store.compare_and_set": lambda: (store, scope, "swapped", None, "value", SOON),
            "Store.list_keys": lambda: (store, scope, "k", SOON),
            "Store.wait_for_key": lambda: (store, scope, "key", SOON),
            "Store.wait_for_value": lambda: (store, scope, "key", "value", SOON),
            "Store.wait_for_keys": lambda: (store, scope, "k*", 1, None, ["key"], SOON),
            "Store.barrier": lambda: (store, scope, "alone", 1, "me", SOON),
            "Store.watch": lambda: (store, scope, "w", True, SOON),
            "Store.lease": lambda: (store, 30.0, False, SOON),
            "Store.join": lambda: (store, SOON),
            "shared_secret": lambda: (store, scope, "secret", SOON),
        }
        return {name: make for name, make in found.items() if self.leases or not of_leases(name)}

    def blocks(self) -> dict[str, Callable[[], object]]:
        store, scope = self.store, self.scope
        return {
            "Store.wait_for_key": lambda: store.wait_for_key(scope, "none", BLOCKED),
            "Store.wait_for_value": lambda: store.wait_for_value(scope, "key", "no", BLOCKED),
            "Store.wait_for_keys": lambda: store.wait_for_keys(
                scope, "none*", 1, None, ["none"], BLOCKED
            ),
            "Store.barrier": lambda: store.barrier(scope, "two", 2, "me", BLOCKED),
            **({"Watch.next": lambda: self.watch.next(scope, BLOCKED)} if self.leases else {}),
        }


class Servers:
    def __init__(self) -> None:
        self.server = _core.StoreServer("127.0.0.1", 0)
        self.spare = _core.StoreServer("127.0.0.1", 0)

    def calls(self) -> dict[str, Arguments]:
        server = self.server
        address = _core.StoreUrl.parse(server.url)
        stats = server.stats()
        counters = [name for name in vars(_core.StoreServerStats) if not name.startswith("_")]
        able = _core.connect(address, SOON).capabilities()
        abilities = [name for name in vars(_core.Capabilities) if not name.startswith("_")]
        return {
            "StoreServer.__init__": lambda: ("127.0.0.1", 0),
            "~StoreServer": lambda: (_core.StoreServer("127.0.0.1", 0),),
            "StoreServer.port": lambda: (server,),
            "StoreServer.url": lambda: (server,),
            "StoreServer.stats": lambda: (server,),
            "StoreServer.wait_for_workers": lambda: (server, 0),
            "StoreServer.stop": lambda: (self.spare,),
            "StoreServer.__enter__": lambda: (server,),
            "StoreServer.__exit__": lambda: (self.spare,),
            **{f"StoreServerStats.{name}": lambda: (stats,) for name in counters},
            **{f"Capabilities.{name}": lambda: (able,) for name in abilities},
            "Store.close": lambda: (_core.connect(address, SOON), True),
            "~Store": lambda: (_core.connect(address, SOON),),
            "connect": lambda: (address, SOON),
            "connect_tcp": lambda: ("127.0.0.1", server.port, SOON),
            "StoreUrl.parse": lambda: ("memory://name",),
            "StoreUrl.namespace_or": lambda: (address, "house"),
            "StoreUrl.__str__": lambda: (address,),
            "KeyScope.__init__": lambda: ("house", "bindings"),
            "Cancellation.__init__": lambda: (),
            "Cancellation.cancel": lambda: (_core.Cancellation(),),
            "Cancellation.cancelled": lambda: (_core.Cancellation(),),
            "variable": lambda: ("PATH",),
            "set_log_level": lambda: ("warn",),
            "stats": lambda: (),
        }

    def blocks(self) -> dict[str, Callable[[], object]]:
        return {"StoreServer.wait_for_workers": lambda: self.server.wait_for_workers(1000, BLOCKED)}


class Values:
    """What has no threads and no locks; called all the same."""

    def calls(self) -> dict[str, Arguments]:
        layout = _core.Layout.parse("2:S0")
        plan = _core.make_plan(layout, layout, [4], "float32", "float32", [], [])
        piece = plan.pieces(0)[0]
        tensors = _core.Tensors([torch.ones(2)])
        shards = {
            "Replicate": (_core.Replicate(), ()),
            "Shard": (_core.Shard(0), (0,)),
            "StridedShard": (_core.StridedShard(0, 2), (0, 2)),
            "Partial": (_core.Partial(), ("avg",)),
        }
        found: dict[str, Arguments] = {
            "Layout.__init__": lambda: ([2], [_core.Shard(0)]),
            "Layout.parse": lambda: ("2:S0",),
            "Layout.local_shape": lambda: (layout, [4], 0),
            "Layout.slices": lambda: (layout, [4], 0),
            "Plan.pieces": lambda: (plan, 0),
            "Plan.serves": lambda: (plan, 0),
            "Tensors.__init__": lambda: ([torch.ones(2)],),
            "Tensors.__getitem__": lambda: (tensors, 0),
            "make_plan": lambda: (layout, layout, [4], "float32", "float32", [], []),
            "redistribute": lambda: (layout, _halves(), layout, _halves()),
            "redistribute_boxes": lambda: (
                [4],
                [torch.ones(4)],
                [(0, [0])],
                [torch.zeros(2)],
                [(1, [2])],
            ),
            "empty": lambda: ([([4], "float32", True)],),
            "is_pooled": lambda: (torch.ones(2),),
            "pool_use": lambda: (),
            "trim_pool": lambda: (),
            "semaphore_name": lambda: ("type", "context"),
            "allow_ptrace": lambda: (os.getpid(),),
            "default_queue_path": lambda: (0,),
            "default_state_path": lambda: (0,),
            "check_agent_file": lambda: (0, "/dev/null"),
            "push_pull_clock": lambda: (),
        }
        for name, (value, arguments) in shards.items():
            found[f"{name}.__init__"] = lambda arguments=arguments: arguments  # type: ignore[misc]
            _add_methods(found, name, value)
        for name, value in (("Layout", layout), ("Plan", plan), ("Piece", piece)):
            _add_methods(found, name, value)
        _add_methods(found, "Tensors", tensors)
        return found

    def blocks(self) -> dict[str, Callable[[], object]]:
        return {}


def _halves() -> dict[int, torch.Tensor]:
    return {0: torch.ones(2), 1: torch.ones(2)}


def _add_methods(found: dict[str, Arguments], kind: str, value: object) -> None:
    """Those that need no arguments but the value, and comparisons."""
    for name, member in vars(type(value)).items():
        is_binding = isinstance(member, property) or hasattr(member, "__nb_signature__")
        if is_binding and f"{kind}.{name}" not in found:
            other = (value,) if name == "__eq__" else ()
            found[f"{kind}.{name}"] = lambda other=other: (value, *other)  # type: ignore[misc]


class Endpoints:
    def __init__(self) -> None:
        self.source = subprocess.Popen(
            [sys.executable, "-c", SOURCE], stdout=subprocess.PIPE, text=True
        )
        assert self.source.stdout is not None
        self.silent = bytes.fromhex(self.source.stdout.readline())
        os.waitpid(self.source.pid, os.WUNTRACED)
        self.endpoint = self.make()
        self.tensor = torch.ones(4)
        self.descriptor = self.endpoint.expose([self.tensor], False)
        self.reader = self.make()
        self.slow = self.reader.read(self.silent, None, True, 60.0, None)

    @staticmethod
    def make() -> Any:
        return _core.Endpoint("house", None, True, "", 0, 0)

    def read(self) -> Any:
        return self.reader.read(self.descriptor, None, True, SOON, None)

    def calls(self) -> dict[str, Arguments]:
        return {
            "Endpoint.__init__": lambda: ("house", None, True, "", 0, 0),
            "~Endpoint": lambda: (self.make(),),
            "Endpoint.expose": lambda: (self.endpoint, [self.tensor], False),
            "Endpoint.release": lambda: (
                self.endpoint, self.endpoint.expose([self.tensor], False),
            ),
            "Endpoint.read": lambda: (self.reader, self.descriptor, None, True, SOON, None),
            "Endpoint.stats": lambda: (self.reader,),
            "Endpoint.close": lambda: (self.make(),),
            "Read.done": lambda: (self.slow,),
            "Read.wait": lambda: (self.read(), SOON),
            "Read.cancel": lambda: (self.read(),),
            "Read.settle": lambda: (self.read(),),
            "Read.fileno": lambda: (self.slow,),
            "Read.path": lambda: (self.slow,),
            "~Read": lambda: (self.read(),),
            "PooledTensor.__dlpack__": lambda: (self.pooled(),),
            "PooledTensor.__dlpack_device__": lambda: (self.pooled(),),
            "describe": lambda: (self.descriptor,),
        }  # fmt: skip

    @staticmethod
    def pooled() -> Any:
        """Seen only on its way into numpy."""
        import numpy as np

        seen: list[Any] = []
        genuine = np.from_dlpack
        np.from_dlpack = lambda tensor: seen.append(tensor) or genuine(tensor)  # type: ignore
        try:
            _core.empty([([4], "float32", False)])
        finally:
            np.from_dlpack = genuine
        return seen[0]

    def blocks(self) -> dict[str, Callable[[], object]]:
        return {"Read.wait": self.wait_for_the_silent_source}

    def wait_for_the_silent_source(self) -> None:
        # On a connection of its own: one that is some seconds old may be lost at any moment.
        reader = self.make()
        reader.read(self.silent, None, True, 60.0, None).wait(BLOCKED)

    def close(self) -> None:
        self.source.send_signal(signal.SIGKILL)
        self.source.wait()


class Buses:
    """Two embedded agents with a batch that one sends and nobody receives, and a daemon's agent."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.made = 0
        self.store = _core.connect(_core.StoreUrl.parse("memory://bus"), SOON)
        self.left, self.right = (self.client() for _ in range(2))
        self.pair(self.left, "a", "b")
        self.pair(self.right, "b", "a")
        self.tensor, self.target = torch.ones(4), torch.ones(4)
        self.tensors = _core.Tensors([self.tensor])
        together(
            lambda: self.register(self.left, self.tensor),
            lambda: self.register(self.right, self.target),
        )
        self.sent = self.send()
        self.agent, self.stepped = self.daemon(), self.daemon()

    def client(self) -> Any:
        self.made += 1
        return _core.BusClient(self.store, self.made, "house", "", (0, 0), SOON)

    def paths(self) -> tuple[str, str]:
        self.made += 1
        return f"{self.folder}/{self.made}.queue", f"{self.folder}/{self.made}.state"

    def daemon(self) -> Any:
        return _core.BusAgent(*self.daemon_arguments())

    def daemon_arguments(self) -> tuple[Any, ...]:
        queue, state = self.paths()
        return self.store, self.made, "house", queue, state, "", SOON

    @staticmethod
    def pair(client: Any, local: str, remote: str) -> None:
        client.init_pair("pair", local, remote, 1, None, [], None, False, SOON)

    @staticmethod
    def register(client: Any, tensor: torch.Tensor) -> None:
        client.register_tensors("batch", [tensor], [("pair", "")], [None], None, None, "off", SOON)

    def send(self) -> Any:
        return self.left.transfer("batch", True, None, self.tensors, False, None)

    def over(self) -> Any:
        """A transfer that has ended."""
        sent = self.send()
        sent.cancel("it is over")
        return sent

    def parting(self) -> Any:
        return self.left.drop_batch("nothing", 0)

    def calls(self) -> dict[str, Arguments]:
        left, sent = self.left, self.sent
        return {
            "BusParting.done": lambda: (self.parting(),),
            "BusTransfer.done": lambda: (sent,),
            "BusTransfer.wait": lambda: (self.over(), SOON),
            "BusTransfer.result": lambda: (self.over(), SOON),
            "BusTransfer.acquire": lambda: (sent, 0.0),
            "BusTransfer.release": lambda: (self.over(),),
            "BusTransfer.unlink": lambda: (self.over(),),
            "BusTransfer.value": lambda: (sent,),
            "BusTransfer.name": lambda: (self.over(), SOON),
            "BusTransfer.cancel": lambda: (self.send(), "it is over"),
            "BusTransfer.progress": lambda: (sent,),
            "BusTransfer.fd": lambda: (self.over(),),
            "~BusTransfer": lambda: (self.over(),),
            "BusClient.__init__": lambda: (*self.paths(), "house", 0, 0.0),
            "BusClient.__init__ 1": lambda: (
                *(self.store, 1000 + self.made),
                *("house", "", (0, 0), SOON),
            ),
            "~BusClient": lambda: (self.client(),),
            "open_trace": lambda: (f"{self.folder}/trace",),
            "TraceFile.path": lambda: (_core.open_trace(f"{self.folder}/trace"),),
            "TraceFile.flush": lambda: (_core.open_trace(f"{self.folder}/trace"),),
            "~TraceFile": lambda: (_core.open_trace(f"{self.folder}/trace"),),
            "BusClient.init_pair": lambda: (
                left, "pair", "a", "b", 1, None, [], None, False, SOON,
            ),
            "BusClient.register_tensors": lambda: (
                left, "other", [self.tensor], [("none", "")], [None], None, None, "off", 0.0,
            ),
            "BusClient.transfer": lambda: (left, "batch", True, None, self.tensors, True, 0.0),
            "BusClient.rank": lambda: (left,),
            "BusClient.copy_threads": lambda: (left,),
            "BusClient.query_signal": lambda: (left, "batch", False, None, None, SOON),
            "BusClient.close_batch": lambda: (left, "none", 0, SOON),
            "BusClient.drop_batch": lambda: (left, "none", 0),
            "BusClient.registration_of": lambda: (left, "batch"),
            "BusClient.queue": lambda: (left, SOON),
            "BusClient.agent_pid": lambda: (left,),
            "BusClient.abandon": lambda: (self.client(), SOON),
            "BusClient.close": lambda: (self.client(), SOON),
            "BusAgent.__init__": self.daemon_arguments,
            "BusAgent.run": lambda: (self.stopped(),),
            "BusAgent.step": lambda: (self.stepped,),
            "BusAgent.stop": lambda: (self.stepped,),
            "BusAgent.close": lambda: (self.daemon(), True),
            "~BusAgent": lambda: (self.daemon(),),
        }  # fmt: skip

    def stopped(self) -> Any:
        agent = self.daemon()
        agent.stop()
        return agent

    def blocks(self) -> dict[str, Callable[[], object]]:
        left, right = self.left, self.right
        return {
            "BusTransfer.wait": lambda: self.sent.wait(BLOCKED),
            "BusTransfer.result": lambda: self.sent.result(BLOCKED),
            "BusTransfer.acquire": lambda: self.sent.acquire(BLOCKED),
            "BusClient.query_signal": lambda: right.query_signal(
                "batch", True, 1000, None, BLOCKED
            ),
            "BusClient.init_pair": lambda: left.init_pair(
                "lonely", "a", "b", 1, None, [], None, True, BLOCKED
            ),
            "BusAgent.run": self.run_for_a_moment,
        }

    def run_for_a_moment(self) -> None:
        end = threading.Timer(BLOCKED, self.agent.stop)
        end.start()
        try:
            self.agent.run()
        finally:
            end.join()


class Links:
    """A link that has published a version, and one to a side that does not exist."""

    def __init__(self) -> None:
        store = _core.connect(_core.StoreUrl.parse("memory://links"), SOON)
        self.client = _core.BusClient(store, 1, "house", "", (0, 0), SOON)
        self.publisher = self.link("a", None)
        self.alone = self.link("a", "b")
        self.tensor = torch.ones(4)
        self.tensors = _core.Tensors([self.tensor])
        self.form = _core.LinkForm(["w"], [None], [None], [None])
        call = self.publisher.begin("x", True, True)
        self.publisher.publish(
            call, self.form, self.tensors, None, 2, None, 0.0, False, "off", SOON,
        )  # fmt: skip
        # Has its turn for good.
        self.first = self.alone.begin("taken", True, False)

    def link(self, local: str, remote: str | None) -> Any:
        return _core.BusLink(self.client, local, remote, 1, "off", False, None, 0)

    def call(self, *, shelf: bool = False, send: bool = True) -> Any:
        return self.alone.begin("x", send, shelf)

    def calls(self) -> dict[str, Arguments]:
        alone, publisher, form, tensors = self.alone, self.publisher, self.form, self.tensors
        held = [self.tensor]
        return {
            "LinkForm.__init__": lambda: (["w"], [None], [([1], [], [0], 0)], [None]),
            "LinkCall.cancel": lambda: (self.call(),),
            "LinkCall.progress": lambda: (self.first,),
            "LinkCall.staged": lambda: (self.first,),
            "LinkCall.wait_until_staged": lambda: (self.first, 0.0),
            "LinkCall.readers": lambda: (self.first,),
            "LinkCall.places": lambda: (self.first,),
            "LinkCall.leave": lambda: (self.call(),),
            "~LinkCall": lambda: (self.call(),),
            "BusLink.__init__": lambda: (self.client, "a", "b", 1, "off", False, None, 0),
            "~BusLink": lambda: (self.link("a", "b"),),
            "BusLink.begin": lambda: (alone, "y", True, False),
            "BusLink.take_turn": lambda: (alone, self.call(), SOON),
            "BusLink.refuse": lambda: (alone, self.call(), "why", SOON),
            "BusLink.send": lambda: (
                alone, self.call(), form, tensors, held, None, 0.0, False, 0,
            ),
            "BusLink.recv": lambda: (
                alone, self.call(send=False), form, tensors, held, None, 0.0, False,
            ),
            "BusLink.publish": lambda: (
                publisher, publisher.begin("x", True, True), form, tensors, None, 2, None, 0.0,
                False, "off", SOON,
            ),
            "BusLink.pull": lambda: (
                alone, self.call(shelf=True, send=False), form, tensors, held, None, None, True,
                0.0, False, False, "all", False,
            ),
            "BusLink.newest": lambda: (publisher, "x", SOON),
            "BusLink.versions": lambda: (publisher, "x", SOON),
            "BusLink.contents": lambda: (publisher, "x", SOON),
            "BusLink.last_send": lambda: (alone, "x"),
            "BusLink.last_update": lambda: (alone, "x"),
            "BusLink.registration": lambda: (alone, "x", True),
            "BusLink.is_busy": lambda: (alone, "taken", True),
            "BusLink.give_place": lambda: (alone, "x", tensors, True),
            "BusLink.close": lambda: (self.link("c", "d"), SOON),
        }  # fmt: skip

    def blocks(self) -> dict[str, Callable[[], object]]:
        alone, form, tensors, held = self.alone, self.form, self.tensors, [self.tensor]
        return {
            "LinkCall.wait_until_staged": lambda: self.first.wait_until_staged(BLOCKED),
            "BusLink.take_turn": lambda: alone.take_turn(
                alone.begin("taken", True, False), BLOCKED
            ),
            "BusLink.refuse": lambda: alone.refuse(
                alone.begin("taken", True, False), "why", BLOCKED
            ),
            "BusLink.recv": lambda: alone.recv(
                self.call(send=False), form, tensors, held, None, BLOCKED, False
            ),
            "BusLink.send": lambda: alone.send(
                self.call(), form, tensors, held, None, BLOCKED, False, 0
            ),
            "BusLink.pull": lambda: alone.pull(
                self.call(shelf=True, send=False), form, tensors, held, None, None, True, BLOCKED,
                False, False, "all", False,
            ),
            "BusLink.contents": lambda: alone.contents("nothing", BLOCKED),
        }  # fmt: skip


class Job:
    """A push-pull job: scheduler, worker and server in one process."""

    one_environment = threading.Lock()  # of the process, which both threads set

    def __init__(self, *, alone: bool = False) -> None:
        # One in which nobody answers: calls of the job itself would let those that block go on.
        self.quiet = self if alone else Job(alone=True)
        self.port = free_port()
        self.taken: list[int] = []
        environments = [self.environment(role) for role in ("scheduler", "worker", "server")]
        self.scheduler, self.worker, self.server = together(
            lambda: _core.PushPullScheduler(environments[0]),
            lambda: _core.PushPullWorker(environments[1]),
            lambda: _core.PushPullServer(environments[2]),
        )
        self.pending = int(self.worker.push_pull(*self.request())) if alone else 0

    def environment(self, role: str, port: int | None = None, timeout: float = SOON) -> Any:
        with self.one_environment:
            os.environ |= {
                "DMLC_ROLE": role,
                "DMLC_NUM_WORKER": "1",
                "DMLC_NUM_SERVER": "1",
                "DMLC_NODE_RANK": "0",
                "DMLC_PS_ROOT_URI": "127.0.0.1",
                "DMLC_PS_ROOT_PORT": str(port or self.port),
                "TENSORBUS_INIT_TIMEOUT": str(timeout),
            }
            return _core.PushPullEnvironment.read()

    def hopeless(self, role: str, timeout: float = 0.0) -> Any:
        return self.environment(role, free_port(), timeout)

    def take(self, handler: int, _tensors: object, _keys: object) -> int:
        """What a server makes of a request."""
        self.taken.append(handler)
        return handler

    def next_taken(self) -> int | None:
        """Nothing if there is none; the other thread may have been quicker."""
        try:
            return self.taken.pop()
        except IndexError:
            return None

    def push(self) -> int:
        """A request that waits for its answer; those before it get theirs, or there is no room."""
        with contextlib.suppress(RuntimeError):
            while self.server.get_batch(0.0, None, self.take):
                pass
        while (handler := self.next_taken()) is not None:
            with contextlib.suppress(RuntimeError):
                self.server.respond([torch.ones(4)], handler)
        return int(self.worker.push_pull(*self.request()))

    @staticmethod
    def request() -> tuple[Any, ...]:
        return [torch.ones(4)], [1], [torch.empty(4)], [2], 1.0

    def after_others(self) -> tuple[Any, ...]:
        self.push()
        return self.request()

    def prepared(self) -> tuple[Any, ...]:
        self.push()
        return self.worker.prepare(*self.request()[:4]), 1.0

    def received(self) -> int:
        self.push()
        self.server.get_batch(0.2, None, self.take)
        handler = self.next_taken()
        if handler is None:
            raise TimeoutError("another thread has answered it")
        return handler

    def calls(self) -> dict[str, Arguments]:
        worker, server, quiet = self.worker, self.server, self.quiet
        environment = self.environment("worker")
        return {
            "PushPullEnvironment.read": lambda: (),
            "PushPullEnvironment.role": lambda: (environment,),
            "PushPullEnvironment.timeout": lambda: (environment,),
            "PushPullScheduler.__init__": lambda: (self.hopeless("scheduler"),),
            "PushPullWorker.__init__": lambda: (self.hopeless("worker"),),
            "PushPullServer.__init__": lambda: (self.hopeless("server"),),
            "PushPullWorker.barrier": lambda: (worker, True, True, True, 0.0),
            "PushPullServer.barrier": lambda: (server, True, True, True, 0.0),
            "PushPullWorker.push_pull": lambda: (worker, *self.after_others()),
            "PushPullWorker.prepare": lambda: (quiet.worker, *self.request()[:4]),
            "PushPullWorker.push_pull_prepared": lambda: (worker, *self.prepared()),
            "PushPullWorker.wait": lambda: (worker, self.push(), 0.0),
            "PushPullWorker.handlers": lambda: (quiet.worker, quiet.pending),
            "PushPullWorker.trace": lambda: (quiet.worker, quiet.pending, None),
            "PushPullWorker.counts": lambda: (quiet.worker,),
            "PushPullServer.get_batch": lambda: (server, 0.0, None, self.take),
            "PushPullServer.respond": lambda: (server, [torch.ones(4)], self.received()),
            "PushPullServer.respond_vec": lambda: (
                server, torch.ones(4), [torch.ones(4)], [self.received()], True,
            ),
            "PushPullServer.register_buffer": lambda: (quiet.server, torch.ones(4), [0], [7]),
            "PushPullServer.counts": lambda: (quiet.server,),
        }  # fmt: skip

    def blocks(self) -> dict[str, Callable[[], object]]:
        worker, server = self.quiet.worker, self.quiet.server
        return {
            "PushPullWorker.wait": lambda: worker.wait(self.quiet.pending, BLOCKED),
            "PushPullServer.get_batch": lambda: server.get_batch(BLOCKED, None, self.take),
            "PushPullWorker.barrier": lambda: worker.barrier(True, True, True, BLOCKED),
            "PushPullServer.barrier": lambda: server.barrier(True, True, True, BLOCKED),
            "PushPullScheduler.__init__": lambda: _core.PushPullScheduler(
                self.hopeless("scheduler", BLOCKED)
            ),
            "PushPullWorker.__init__": lambda: _core.PushPullWorker(
                self.hopeless("worker", BLOCKED)
            ),
            "PushPullServer.__init__": lambda: _core.PushPullServer(
                self.hopeless("server", BLOCKED)
            ),
            "PushPullWorker.push_pull": lambda: self.crowd(
                lambda: worker.push_pull(*self.request()[:4], BLOCKED)
            ),
            "PushPullWorker.push_pull_prepared": lambda: self.crowd(
                lambda: worker.push_pull_prepared(worker.prepare(*self.request()[:4]), BLOCKED)
            ),
            "PushPullWorker.stop": lambda: self.stop_of("worker"),
            "PushPullServer.stop": lambda: self.stop_of("server"),
            "PushPullScheduler.stop": lambda: self.stop_of("scheduler"),
        }

    @staticmethod
    def stop_of(role: str) -> None:
        """While the others of its job stay."""
        job = Job(alone=True)
        getattr(job, role).stop(BLOCKED)

    @staticmethod
    def crowd(send: Callable[[], object]) -> None:
        """Until there is no room for one more, which waits and ends with a timeout."""
        for _ in range(5000):
            send()

    def last_calls(self) -> dict[str, Arguments]:
        """Those after which there is no job."""
        return {
            "PushPullWorker.stop": lambda: (self.worker, 0.0),
            "PushPullServer.stop": lambda: (self.server, 0.0),
            "PushPullScheduler.stop": lambda: (self.scheduler, 0.0),
            "~PushPullWorker": lambda: (self.__dict__.pop("worker"),),
            "~PushPullServer": lambda: (self.__dict__.pop("server"),),
            "~PushPullScheduler": lambda: (self.__dict__.pop("scheduler"),),
        }


@contextlib.contextmanager
def endpoints() -> Iterator[Endpoints]:
    made = Endpoints()
    try:
        yield made
    finally:
        made.close()
