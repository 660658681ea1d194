"""Calls every binding of the core on a second thread, again and again, while the main thread is
blocked in each call that blocks.

Run by test_bindings.py with lock_watch.c preloaded; its arguments are what blocks (`blocks`, or
`silent`: calls whose other end says nothing) and a folder. Prints what is wrong, a line each. A
deadlock ends it with the stacks of all threads.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import faulthandler
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import scene
import silent
from tensorbus import _core

PATIENCE = 100.0
# What calls may end with, in a second thread while another blocks. Not TypeError: that is a call
# which does not fit its signature.
ENDS = (RuntimeError, OSError, ValueError)
# Of the time for which a call shall block; clocks differ a little.
ALMOST = 0.9


def bindings() -> Iterator[str]:
    """Their names, with a number from the second overload on."""
    for name, value in vars(_core).items():
        if isinstance(value, type):
            for member, inside in vars(value).items():
                yield from _overloads(f"{name}.{member}", inside)
        else:
            yield from _overloads(name, value)


def _overloads(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        yield name
    for index in range(len(getattr(value, "__nb_signature__", ()))):
        yield name if index == 0 else f"{name} {index}"


def _parameters(function: Any, overload: int) -> list[str]:
    """As the stub has them, which is made from these signatures."""
    signature = re.sub(r"\\\d+", "None", function.__nb_signature__[overload][0])
    signature = re.sub(r"^def (\w+)\[\w+\]", r"def \1", signature)  # of 3.12
    arguments = ast.parse(f"{signature}: ...").body[0].args  # type: ignore[attr-defined]
    return [each.arg for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]


def _binding(name: str) -> tuple[Any, Any, int]:
    """Its owner, itself (none for the end of an object), its overload."""
    path, _, overload = name.partition(" ")
    kind, _, member = path.rpartition(".")
    owner = getattr(_core, kind) if kind else _core
    return owner, vars(owner).get(member), int(overload or 0)


def _all_parameters() -> dict[str, list[str]]:
    found = ((name, *_binding(name)[1:]) for name in bindings())
    return {
        name: _parameters(function, overload)
        for name, function, overload in found
        if not isinstance(function, property)
    }


# Read once, before there are threads: two that parse at a time make Python 3.11 stumble
# ("AST constructor recursion depth mismatch").
PARAMETERS = _all_parameters()


# Calls with a timeout that no other end can hold up.
CANNOT_BLOCK = {
    "Endpoint.read": "returns a Read, which waits",
    "BusClient.abandon": "closes on a thread of its own",
}


def takes_a_timeout(name: str) -> bool:
    return "timeout" in PARAMETERS.get(name, ())  # a property and the end of an object have none


def call(name: str, arguments: list[Any]) -> None:
    """By the names that the stub gives the arguments."""
    if name.startswith("~"):
        arguments.clear()
        return
    owner, function, _ = _binding(name)
    if isinstance(function, property):
        function.__get__(arguments[0])
        return
    names = PARAMETERS[name]
    if function is vars(owner).get("__init__"):
        function, names = owner, names[1:]
    given = dict(zip(names, arguments, strict=False))
    positional = [given.pop(each) for each in ("self", "arg") if each in given]
    function(*positional, **given)


class LockWatch:
    """What lock_watch.c has counted in the calling thread."""

    def __init__(self) -> None:
        # With the GIL: letting go of it would give others a turn in every call.
        library = ctypes.PyDLL(None)
        self._counts = {
            "takes a lock of the core while it has the interpreter": (
                library.lock_watch_locks_with_gil
            ),
            "asks for Ctrl-C while it has a lock of the core": (
                library.lock_watch_questions_with_lock
            ),
        }
        for function in self._counts.values():
            function.restype = ctypes.c_long
        self._place = library.lock_watch_last_place
        self._place.restype = ctypes.c_size_t
        lines = Path("/proc/self/maps").read_text().splitlines()
        ours = [line.split()[0].split("-") for line in lines if line.endswith(_core.__file__)]
        begin, end = int(ours[0][0], 16), int(ours[-1][1], 16)
        check = ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p)
        library.lock_watch_start(ctypes.c_size_t(begin), ctypes.c_size_t(end), check)

    def faults(self, run: Callable[[], None]) -> list[str]:
        before = {what: count() for what, count in self._counts.items()}
        run()
        return [
            f"{what} (at {self._place():#x})"
            for what, count in self._counts.items()
            if count() > before[what]
        ]


class Checks:
    def __init__(self) -> None:
        self.watch = LockWatch()
        self.faults: set[str] = set()

    def call(self, name: str, make: Callable[[], tuple[Any, ...]]) -> BaseException | None:
        """What it ended with."""
        ended: list[BaseException] = []
        try:
            arguments = list(make())
        except ENDS as error:
            return error

        def run() -> None:
            try:
                call(name, arguments)
            except ENDS as error:
                ended.append(error)

        self.faults |= {f"{name} {fault}" for fault in self.watch.faults(run)}
        return ended[0] if ended else None

    def block(self, name: str, blocked: Callable[[], object], others: dict[str, Any]) -> None:
        """Every other call at least once while it blocks."""
        stop, all_called = threading.Event(), threading.Event()

        def call_others() -> None:
            while not stop.is_set():
                for other, make in others.items():
                    self.call(other, make)
                all_called.set()

        longest = 0.0

        def run() -> None:
            nonlocal longest
            while not all_called.is_set() and not second.done():
                begin = time.monotonic()
                end_of(blocked)
                longest = max(longest, time.monotonic() - begin)

        with ThreadPoolExecutor(1) as threads:
            second = threads.submit(call_others)
            try:
                self.faults |= {f"{name}, blocked, {fault}" for fault in self.watch.faults(run)}
            finally:
                stop.set()
            second.result()
        if longest < scene.BLOCKED * ALMOST:
            self.faults.add(f"{name} does not block")

    def block_all(self, blocked: dict[str, Callable[[], object]], others: dict[str, Any]) -> None:
        """Each once, while the others are called again and again."""
        stop = threading.Event()

        def call_others() -> None:
            while not stop.is_set():
                for other, make in others.items():
                    self.call(other, make)

        with ThreadPoolExecutor(1) as threads:
            second = threads.submit(call_others)
            try:
                for name, each in blocked.items():
                    self._block_at_a_silent_end(name, each)
            finally:
                stop.set()
            second.result()

    def _block_at_a_silent_end(self, name: str, blocked: Callable[[], object]) -> None:
        print(f"silent: {name}", file=sys.stderr, flush=True)
        begin = time.monotonic()
        faults = self.watch.faults(lambda: end_of(blocked))
        self.faults |= {f"{name}, at a silent end, {fault}" for fault in faults}
        if time.monotonic() - begin < silent.MOMENT * ALMOST:
            self.faults.add(f"{name} does not block at a silent end")


def end_of(blocked: Callable[[], object]) -> None:
    with contextlib.suppress(*ENDS):
        blocked()


class Everything:
    """All parts of the scene, and what can be called on them."""

    def __init__(self, folder: str, endpoints: scene.Endpoints) -> None:
        self.servers, self.job = scene.Servers(), scene.Job()
        self.etcd, etcd_url = silent.etcd()
        ours = self.servers.server
        urls = ["memory://house", ours.url, f"tcpstore://127.0.0.1:{ours.port}", etcd_url]
        self.parts: list[Any] = [
            *(self.servers, scene.Values(), self.job, endpoints),
            *(scene.Buses(folder), scene.Links()),
            *(scene.Stores(url) for url in urls[:0:-1]),
            scene.Stores(urls[0]),
        ]
        self.calls: dict[str, Any] = {}
        for part in self.parts:
            self.calls |= part.calls()

    def close(self) -> None:
        self.etcd.close()


def check_calls(checks: Checks, everything: Everything) -> None:
    missing = set(bindings()) - set(everything.calls) - set(everything.job.last_calls())
    checks.faults |= {f"{name} has no call in scene.py" for name in missing}
    print("calls", file=sys.stderr, flush=True)
    for name, make in everything.calls.items():
        error = checks.call(name, make)
        print(f"  {name}: {error!r}", file=sys.stderr, flush=True)


def check_blocks(checks: Checks, everything: Everything, _folder: str) -> None:
    check_calls(checks, everything)
    for part in everything.parts:
        others = everything.calls | part.calls()
        for name, blocked in part.blocks().items():
            print(f"blocked: {name}", file=sys.stderr, flush=True)
            checks.block(name, blocked, others)
    for name, make in everything.job.last_calls().items():
        checks.call(name, make)


def check_silent(checks: Checks, everything: Everything, folder: str) -> None:
    """And that no call with a timeout was forgotten."""
    agent = silent.SilentAgent(everything.servers.server.url, folder)
    checks.block_all(agent.silent(), everything.calls)
    agent.close()
    known = set(agent.silent()) | set(CANNOT_BLOCK)
    for part in everything.parts:
        known |= set(part.blocks())
    for scheme in ("tensorbus", "tcpstore", "etcd"):
        print(f"a silent {scheme}://", file=sys.stderr, flush=True)
        store = silent.SilentStore(*silent.server(scheme))
        blocked = {
            name: lambda name=name, make=make: call(name, silent.shortly(make()))
            for name, make in store.silent().items()
            if takes_a_timeout(name)
        }
        checks.block_all(blocked, everything.calls)
        store.close()
        known |= set(blocked)
    timed = {name for name in bindings() if takes_a_timeout(name)}
    checks.faults |= {f"{name} is blocked nowhere" for name in timed - known}
    checks.faults |= {f"{name} takes no timeout" for name in set(CANNOT_BLOCK) - timed}


def main(what: str, folder: str) -> int:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    checks = Checks()
    with scene.endpoints() as endpoints:
        everything = Everything(folder, endpoints)
        check = {"blocks": check_blocks, "silent": check_silent}[what]
        check(checks, everything, folder)
        everything.close()
    print("\n".join(sorted(checks.faults)))
    return 1 if checks.faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
