"""Fails when a room uses one that it may not, reads a clock or the environment, asks for Ctrl-C,
has a mutex that nobody checks or that is made too late, or has grown too full.

The table is the one in docs/contributing.md: folder = room, and a room includes only what stands in
its row. A layer is a room or a folder of rooms. Public headers belong to the layer that implements
them; the name of a layer that has rooms stands for its public headers alone. Tests may use whatever
some room of their layer may, and rooms that are there for tests.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MOST_FILES = 25
OS = {"os/io", "os/process", "os/net"}
BELOW_DELTA = {"base", "tensor", "plan", "copy"}
BELOW_FABRIC = {"base", "wire", "observe", "tensor", "plan", "copy"} | OS
BELOW_STORE = {"base", "observe"} | OS
DEVICES = {"device/core", "device/cuda"}
FABRICS = {"fabric/core", "fabric/read", "fabric/shm", "fabric/ucx", "fabric/route"}
BELOW_BUS = BELOW_FABRIC | {"store", "fabric"}
MAY_USE: dict[str, set[str]] = {
    "base": set(),
    "base/hot": {"base"},
    "wire": {"base"},
    "os/io": {"base"},
    "os/process": {"base", "os/io"},
    "os/net": {"base", "os/io"},
    "observe": {"base"} | OS,
    "observe/show": {"base", "observe"} | OS,
    "tensor": {"base"},
    "plan": {"base", "tensor"},
    "plan/report": {"base", "tensor", "plan"},
    "copy": {"base", "base/hot", "os/process", "tensor", "plan"},
    "delta/change": BELOW_DELTA,
    "delta/patch": BELOW_DELTA | {"delta/change"},
    "delta/policy": BELOW_DELTA | {"delta/change"},
    "device/core": {"base"} | OS,
    "device/cuda": {"base", "device/core"} | OS,
    "store/common": BELOW_STORE,
    "store/protocol": BELOW_STORE | {"store/common"},
    "store/engine": BELOW_STORE | {"store/common", "store/protocol"},
    "store/server": BELOW_STORE | {"store/common", "store/protocol", "store/engine"},
    "store/native": BELOW_STORE | {"store/common", "store/protocol", "store/engine"},
    "store/torch": BELOW_STORE | {"store/common", "store/protocol", "store/engine"},
    "store/etcd": BELOW_STORE | {"store/common", "store/engine"},
    "store/connect": BELOW_STORE
    | {"store/common", "store/protocol", "store/native", "store/torch", "store/etcd"},
    "fabric/core": BELOW_FABRIC,
    "fabric/read": BELOW_FABRIC | {"fabric/core", "device/core"},
    "fabric/shm": BELOW_FABRIC | DEVICES | {"fabric/core", "fabric/read"},
    "fabric/ucx": BELOW_FABRIC | DEVICES | {"fabric/core", "fabric/read"},
    "fabric/route": BELOW_FABRIC | {"fabric/core", "fabric/shm", "fabric/ucx"},
    "endpoint": BELOW_FABRIC | FABRICS | {"observe/show"},
    "bus/channel": BELOW_BUS | {"delta/policy", "fabric/core"},
    "bus/files": BELOW_BUS | {"bus/channel"},
    "bus/socket": BELOW_BUS | {"bus/channel", "bus/files"},
    "bus/client": BELOW_BUS
    | DEVICES
    | {"delta/change", "fabric/core", "fabric/read", "bus/channel"},
    "bus/link": BELOW_BUS | {"fabric/core", "device/core", "bus/channel", "bus/client"},
    "bus/directory": BELOW_BUS | {"fabric/core", "bus/channel"},
    "bus/match": BELOW_BUS | {"bus/channel", "bus/directory"},
    "bus/round": BELOW_BUS
    | DEVICES
    | {"delta/policy", "fabric/core", "fabric/read", "bus/channel", "bus/directory", "bus/match"},
    "bus/patching": BELOW_BUS
    | {"delta/change", "delta/patch", "delta/policy", "fabric/core"}
    | {"bus/channel", "bus/round"},
    "bus/registration": BELOW_BUS
    | {"fabric/core", "fabric/route", "bus/channel", "bus/directory", "bus/match", "bus/round"},
    "bus/shelf": BELOW_BUS
    | {"fabric/core", "bus/channel", "bus/directory"}
    | {"bus/match", "bus/round", "bus/patching", "bus/registration"},
    "bus/batch": BELOW_BUS
    | {"fabric/core", "bus/channel", "bus/directory"}
    | {"bus/match", "bus/round", "bus/registration", "bus/shelf"},
    "bus/report": BELOW_BUS | {"bus/channel", "bus/directory", "bus/registration"},
    "bus/agent": BELOW_BUS
    | {"delta/change", "fabric/core", "bus/channel", "bus/files", "bus/report"}
    | {"bus/directory", "bus/match", "bus/round", "bus/registration", "bus/shelf", "bus/batch"},
    "bus/host": BELOW_BUS
    | DEVICES
    | FABRICS
    | {"observe/show"}
    | {"bus/channel", "bus/files", "bus/socket", "bus/client", "bus/link", "bus/report"}
    | {"bus/directory", "bus/round", "bus/agent"},
    "push_pull/job": BELOW_BUS | FABRICS | {"base/hot", "observe/show"},
    "push_pull/request": BELOW_BUS | DEVICES | {"fabric/core", "push_pull/job"},
    "program/look": BELOW_BUS
    | {"store/common"}
    | {"bus/directory", "bus/match", "bus/report", "bus", "plan/report"},
    "program": BELOW_BUS
    | DEVICES
    | FABRICS
    | {"observe/show", "program/look"}
    | {"bus/files", "bus/directory", "bus/report", "bus/host", "bus"}
    | {"push_pull/job", "push_pull", "plan/report"},
    "python": BELOW_BUS
    | DEVICES
    | FABRICS
    | {"observe/show"}
    | {"plan/report", "endpoint", "store/torch", "bus", "push_pull", "push_pull/request"}
    | {"bus/channel", "bus/client", "bus/files", "bus/host", "bus/link", "bus/socket"},
}
# What tests share. No room of the product uses them.
FOR_TESTS = {
    "base/testing",
    "wire/testing",
    "os/testing",
    "plan/testing",
    "delta/testing",
    "device/fake",
    "device/conformance",
    "store/testing",
    "fabric/memory",
    "fabric/conformance",
    "bus/simulation",
    "bus/simulation/claims",
    "push_pull/testing",
}
PUBLIC_HEADERS = {
    "status.h": "base",
    "deadline.h": "base",
    "log.h": "base",
    "stats.h": "observe",
    "store.h": "store",
    "dtype.h": "tensor",
    "layout.h": "tensor",
    "tensor.h": "tensor",
    "plan.h": "plan",
    "endpoint.h": "endpoint",
    "pool.h": "fabric",
    "push_pull.h": "push_pull",
    "secret.h": "store",
    "bus.h": "bus",
    "link.h": "bus",
}
# Asked with a lock held it can wait for ever: the other layers ask through base/waiting.h and
# os/io/poll.h. Python installs the answer.
INTERRUPT = "base/interrupt.h"
MAY_ASK = {"base", "os", "python"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
CLOCK = re.compile(
    r"_clock::now|\bclock_gettime\b|\bgettimeofday\b|\bstd::time\b|\btime\(nullptr\)|__rdtsc"
)
ENVIRONMENT = re.compile(r"\b(secure_)?getenv\b|\benviron\b")
# clang cannot see what it guards. Public headers have no macros to say so.
MUTEX = re.compile(r"\bstd::\w*mutex \w+;")
# One that is made at its first use is perhaps being made when another thread forks.
LATE_MUTEX = re.compile(r"\bstatic ProcessMutex\b|\bnew ProcessMutex\b")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def layer_of(room: str) -> str:
    return room.partition("/")[0]


LAYERS = {layer_of(room) for room in MAY_USE}


def used_by(include: str) -> str | None:
    """The room, or for a public header the layer, that an include names; nothing: not ours."""
    folder, _, name = include.rpartition("/")
    if folder == "tensorbus":
        return PUBLIC_HEADERS.get(name, f"public header {name} that tools/check_layers.py lacks")
    return folder if layer_of(folder) in LAYERS else None


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "include":
        return PUBLIC_HEADERS.get(path.name, f"unknown public header {path.name}")
    return "python" if parts[0] == "python" else "/".join(parts[1:-1])


def is_for_tests(path: Path) -> bool:
    return path.stem.endswith("_test") or room_of(path) in FOR_TESTS


def rooms_of(layer: str) -> set[str]:
    return {room for room in MAY_USE | dict.fromkeys(FOR_TESTS) if layer_of(room) == layer}


def allowed(path: Path) -> set[str] | None:
    """What a file may use; nothing if its room has no row."""
    room = room_of(path)
    layer = layer_of(room)
    if is_for_tests(path) or path.is_relative_to(ROOT / "include"):
        if layer not in LAYERS:
            return None
        rows = rooms_of(layer) | FOR_TESTS
        uses = {used for each in rows for used in MAY_USE.get(each, set())} | {layer} | rows
        if not is_for_tests(path):
            return uses - FOR_TESTS
        return uses | {each for used in uses for each in rooms_of(layer_of(used))}
    if room not in MAY_USE:
        return None
    return MAY_USE[room] | {room, layer}


def problems_of(path: Path) -> list[str]:
    room = room_of(path)
    text = path.read_text()
    where = path.relative_to(ROOT)
    uses = allowed(path)
    if uses is None:
        return [f"{where}: {room} has no row in the table of rooms"]
    found = []
    for name in INCLUDE.findall(text):
        used = used_by(name)
        if used is None or used in uses:
            continue
        found.append(f'{where}: "{room}" may not use "{used}" (includes {name})')
    layer = layer_of(room)
    if INTERRUPT in INCLUDE.findall(text) and layer not in MAY_ASK and not is_for_tests(path):
        found.append(f"{where}: asks for Ctrl-C; only base and os may (use base/waiting.h)")
    code = COMMENT.sub("", text)
    if layer != "base" and CLOCK.search(code):
        found.append(f"{where}: reads a clock; only base may (use base/clock.h)")
    if layer != "base" and ENVIRONMENT.search(code):
        found.append(f"{where}: reads the environment; only base may (use base/config.h)")
    if where.parts[0] != "include" and not is_for_tests(path) and MUTEX.search(code):
        found.append(f"{where}: has a mutex that clang does not know (use base/mutex.h)")
    if LATE_MUTEX.search(code):
        found.append(f"{where}: a ProcessMutex is made at load, not when it is first used")
    return found


def full_rooms() -> list[str]:
    found = []
    for folder in sorted({path.parent for path in (ROOT / "src").rglob("*.*")}):
        files = sum(1 for path in folder.iterdir() if path.is_file())
        if files > MOST_FILES:
            where = folder.relative_to(ROOT)
            found.append(f"{where}: {files} files; a room has at most {MOST_FILES}")
    return found


def sources() -> list[Path]:
    return sorted(
        path
        for folder in ("include", "src", "python/bindings")
        for pattern in ("*.h", "*.cc")
        for path in (ROOT / folder).rglob(pattern)
    )


def main() -> int:
    problems = [problem for path in sources() for problem in problems_of(path)]
    problems += full_rooms()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
