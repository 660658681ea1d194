"""Fails when one word names two things.

A type that a header has in the namespace of its layer has a name that no other header gives, in
whatever layer: who reads "Side" knows which. A namespace within a layer's (`fabric::ucx`,
`push_pull::wire`) has words of its own, and so have classes, sources and tests; but some words that
once meant many things mean one everywhere.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

import check_layers

# Everywhere the type of this header alone: also inside of classes, in sources and in tests.
MEANS_ONE = {
    "Entry": {"include/tensorbus/store.h"},
    "Link": {"include/tensorbus/link.h", "src/bus/link/link.h"},  # the user's, and its inside
    "Place": {"src/fabric/core/pool.h"},
    "Received": {"include/tensorbus/endpoint.h", "include/tensorbus/push_pull.h"},  # both public
    "Record": {"src/store/engine/table.h"},
    "Side": {"src/bus/match/pair.h"},
    "Transfer": {"src/bus/channel/command.h"},
}
# What two layers call the same, and why they may.
SHARED = {
    "Connection": "the end of whichever channel or socket a layer has",
    "Group": "plans: who holds a piece; bus: who sends a batch in step",
    "Hello": "the first message of each protocol",
    "Loop": "what the thread of an endpoint, or of a node, does",
    "Mark": "bus: of a word; device: in a queue, as CUDA's events",
    "Membership": "of a batch, and of a job",
    "Party": "push-pull's is public; bus: who may change a word",
    "Pitch": "one idea in two layers that may not use each other",
    "Reader": "bus: who reads tensors; wire: what reads bytes",
    "Run": "plan's is public; program: what a subcommand does",
    "Sessions": "of an agent's clients, and of a store's",
    "Source": "bus: who sends; fabric: one that a read takes from",
    "Span": "plan's is public; observe: a stretch of time, as tracing calls it",
    "Stream": "plan's is public; device: as DLPack and CUDA call it",
    "Swap": "of a key, and of a word",
    "TensorList": "bus: what records refer to; bindings: what Python gave",
    "Waits": "bus: a message; store: what clients wait for",
}
NAMESPACE = r"^namespace (?P<space>[\w:]+) \{"
KIND = r"(?P<kind>struct|class|enum class|union|using)"
TYPE = rf"{KIND} (?:[A-Z_]+ )?(?P<name>[A-Z]\w*)(?P<rest>[^\n]*)"
OUTSIDE_OF_CLASSES = re.compile(f"{NAMESPACE}|^{TYPE}", re.MULTILINE)
ANYWHERE = re.compile(rf"^\s*(?:friend )?{TYPE}", re.MULTILINE)
Definitions = dict[str, set[str]]


def defines(found: re.Match[str]) -> bool:
    """Not a declaration, not the inside of a class that another file has."""
    rest = found["rest"].strip()
    if found["kind"] == "using":
        return rest.startswith("=")
    return not rest.startswith(("::", ";"))


def code_of(path: Path) -> str:
    return check_layers.COMMENT.sub("", path.read_text())


def of_layers() -> Definitions:
    """By name: the headers whose layer's namespace has a type of that name."""
    headers: Definitions = defaultdict(set)
    for path in check_layers.sources():
        if path.suffix != ".h" or check_layers.is_for_tests(path):
            continue
        space = ""
        for found in OUTSIDE_OF_CLASSES.finditer(code_of(path)):
            if found["space"]:
                space = found["space"]
            elif space.count("::") <= 1 and defines(found):
                headers[found["name"]].add(str(path.relative_to(check_layers.ROOT)))
    return headers


def of_all() -> Definitions:
    files: Definitions = defaultdict(set)
    for path in check_layers.sources():
        for found in ANYWHERE.finditer(code_of(path)):
            if defines(found):
                files[found["name"]].add(str(path.relative_to(check_layers.ROOT)))
    return files


def problems() -> list[str]:
    found = []
    for name, headers in sorted(of_layers().items()):
        if len(headers) > 1 and name not in SHARED and name not in MEANS_ONE:
            found.append(f"{name} names two things: {', '.join(sorted(headers))}")
        if len(headers) < 2 and name in SHARED:
            found.append(f"{name} names one thing; tools/check_names.py need not say more")
    everywhere = of_all()
    for name, owners in MEANS_ONE.items():
        for other in sorted(everywhere[name] - owners):
            found.append(f"{other}: {name} is what {sorted(owners)[0]} says; find another word")
    return found


def main() -> int:
    found = problems()
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
