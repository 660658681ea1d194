"""Fails when a layer uses one that it may not, reads a clock or the environment, asks for Ctrl-C.

The table is the one in docs/contributing.md: folder = layer, and a layer includes only what stands
in its row. Public headers belong to the layer that implements them.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BELOW_FABRIC = {"base", "os", "observe", "tensor", "plan", "copy"}
BELOW_BUS = BELOW_FABRIC | {"store", "fabric"}
MAY_USE: dict[str, set[str]] = {
    "base": set(),
    "os": {"base"},
    "observe": {"base", "os"},
    "tensor": {"base"},
    "plan": {"base", "tensor"},
    "copy": {"base", "tensor", "plan"},
    "store": {"base", "os", "observe"},
    "fabric": BELOW_FABRIC,
    "bus": BELOW_BUS,
    "push_pull": BELOW_BUS,
    "tools": BELOW_BUS | {"bus", "push_pull"},
    "python": BELOW_BUS | {"bus", "push_pull"},
}
PUBLIC_HEADERS = {
    "status.h": "base",
    "deadline.h": "base",
    "log.h": "base",
    "store.h": "store",
    "dtype.h": "tensor",
    "layout.h": "tensor",
    "tensor.h": "tensor",
    "plan.h": "plan",
    "endpoint.h": "fabric",
    "pool.h": "fabric",
    "push_pull.h": "push_pull",
    "secret.h": "store",
    "bus.h": "bus",
}
# Client and agent may run in two processes: what they share is the channel.
CLIENT_SIDE = {"bus/client.h", "bus/transfer.h"}
AGENT_SIDE = {
    "bus/agent.h",
    "bus/batch.h",
    "bus/catalog.h",
    "bus/directory.h",
    "bus/links.h",
    "bus/match.h",
    "bus/pair.h",
    "bus/reader.h",
    "bus/recv.h",
    "bus/source.h",
    "bus/state.h",
}
# Asked with a lock held it can wait for ever: the other layers ask through base/waiting.h and
# os/poll.h. Python installs the answer.
INTERRUPT = "base/interrupt.h"
MAY_ASK = {"base", "os", "python"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
CLOCK = re.compile(
    r"_clock::now|\bclock_gettime\b|\bgettimeofday\b|\bstd::time\b|\btime\(nullptr\)|__rdtsc"
)
ENVIRONMENT = re.compile(r"\b(secure_)?getenv\b|\benviron\b")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def layer_of_include(name: str) -> str | None:
    folder, _, rest = name.partition("/")
    if folder == "tensorbus":
        if rest not in PUBLIC_HEADERS:
            return f"public header {rest} that tools/check_layers.py does not know"
        return PUBLIC_HEADERS[rest]
    return folder if folder in MAY_USE else None


def layer_of_file(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "include":
        return PUBLIC_HEADERS.get(path.name, f"unknown public header {path.name}")
    return "python" if parts[0] == "python" else parts[1]


def problems_of(path: Path) -> list[str]:
    layer = layer_of_file(path)
    text = path.read_text()
    where = path.relative_to(ROOT)
    if layer not in MAY_USE:
        return [f"{where}: {layer} has no row in the layer table"]
    found = []
    for name in INCLUDE.findall(text):
        used = layer_of_include(name)
        if used is not None and used != layer and used not in MAY_USE[layer]:
            found.append(f'{where}: layer "{layer}" may not use "{used}" (includes {name})')
    own = f"{path.parent.name}/{path.stem}.h"
    for side, other in ((CLIENT_SIDE, AGENT_SIDE), (AGENT_SIDE, CLIENT_SIDE)):
        if own in side:
            found += [
                f"{where}: client and agent share only the channel (includes {name})"
                for name in INCLUDE.findall(text)
                if name in other
            ]
    if INTERRUPT in INCLUDE.findall(text) and layer not in MAY_ASK and not own.endswith("_test.h"):
        found.append(f"{where}: asks for Ctrl-C; only base and os may (use base/waiting.h)")
    code = COMMENT.sub("", text)
    if layer != "base" and CLOCK.search(code):
        found.append(f"{where}: reads a clock; only base may (use base/clock.h)")
    if layer != "base" and ENVIRONMENT.search(code):
        found.append(f"{where}: reads the environment; only base may (use base/config.h)")
    return found


def main() -> int:
    files = sorted(
        path
        for folder in ("include", "src", "python/bindings")
        for pattern in ("*.h", "*.cc")
        for path in (ROOT / folder).rglob(pattern)
    )
    problems = [problem for path in files for problem in problems_of(path)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
