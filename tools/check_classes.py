"""Fails when a class of a header has grown too large: over 20 members and over 30 methods.

A class of NAMED, on which the others hang, keeps to each of the two numbers.
`tools/check_classes.py` reads the headers of src/ and include/; `--list` shows the largest. What is
larger for a reason stands in ALLOWED, with the reason; one that has become smaller has to leave the
list. Constants, types and friends are no members; constructors, destructors, assignments and what
is deleted are no methods; the classes inside of a class count for themselves.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MOST_MEMBERS = 20
MOST_METHODS = 30
NAMED = {
    "src/base/waiting.h": "Waiting",
    "src/bus/agent/agent.h": "Agent",
    "src/bus/batch/batch.h": "Batch",
    "src/bus/batch/exchange.h": "Exchange",
    "src/bus/link/link.h": "Link",
    "src/bus/registration/membership.h": "Membership",
    "src/fabric/core/fabric.h": "Fabric",
    "src/fabric/core/inlets.h": "Inlets",
    "src/fabric/core/messages.h": "Messages",
    "src/fabric/core/pool.h": "Pool",
    "src/fabric/core/reads.h": "Reads",
    "src/fabric/route/station.h": "Station",
}
ALLOWED = {
    "Recv": "one recv from its first read to its last commit. How far it is and what its sources "
    "were told of that (bytes_*, tell_at_, phase_began_at_), and what it knows of a loss (loss_, "
    "taken_back_at_, explained_by_), are values that could leave it; that has not been done yet",
    "ShmCore": "implements the three interfaces of a fabric, 22 methods, on one state that one "
    "thread owns: connections, regions, operations. One class in four files, by what they serve",
    "Station": "implements the three interfaces of a fabric, 22 methods, most of them a line that "
    "passes the call on to shared memory or the network; its only decision is the route",
    "World": "of the simulation: the one owner of all that a run has (time, agents, users, store, "
    "faults), since a seed must decide the order of everything",
}

# A text or character first of all: its slashes and braces are none.
NOT_CODE = re.compile(
    r'R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    r"|//[^\n]*|/\*(?:.|\n)*?\*/|^[ \t]*#(?:\\\n|[^\n])*",
    re.MULTILINE,
)
# `GUARDED_BY(...)` and its like, which look like calls.
ANNOTATION = re.compile(r"\b[A-Z][A-Z_]{3,}\b(?:\(\))?")
HEAD = re.compile(
    r"\b(?<!enum )(?:class|struct)\s+"
    r"(?:[A-Z_]{4,}\((?:[^()]|\([^()]*\))*\)\s*|alignas\([^()]*\)\s*)*"
    r"(\w+)(?:\s+final)?(?:\s*:(?!:)[^;{]*)?\s*\{"
)
NO_MEMBER = re.compile(r"^(using|typedef|friend|static_assert|enum|(class|struct|union)\b)")
CONSTANT = re.compile(r"\bstatic\b.*\b(constexpr|const)\b|\bconstexpr\b.*\bstatic\b")


class Size(NamedTuple):
    name: str
    path: Path
    members: int
    methods: int

    def is_too_large(self) -> bool:
        too_large = (self.members > MOST_MEMBERS, self.methods > MOST_METHODS)
        return any(too_large) if self.is_named() else all(too_large)

    def is_named(self) -> bool:
        return NAMED.get(self.path.as_posix()) == self.name

    def __str__(self) -> str:
        return f"{self.path}: {self.name} has {self.members} members and {self.methods} methods"


def inside(code: str, opening: int) -> str:
    """What the brace at that place holds."""
    depth = 0
    for at in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        if depth == 0:
            return code[opening + 1 : at]
    raise ValueError(f"a brace is not closed: {code[opening : opening + 80]}")


def hollow(body: str) -> str:
    """Without what its parentheses, brackets and braces hold."""
    kept = []
    depth = 0
    for letter in body:
        depth -= letter in ")]}"
        if depth == 0:
            kept.append(letter)
        depth += letter in "([{"
    return "".join(kept)


def statements(body: str) -> Iterator[str]:
    """A declaration ends with a semicolon, or with the body of a function."""
    text = re.sub(r"\b(public|private|protected)\s*:(?!:)", " ", ANNOTATION.sub(" ", hollow(body)))
    said = ""
    for part in re.split(r"(;|\{\})", text):
        if part == ";":
            yield " ".join(said.split())
            said = ""
        elif said.endswith("{}") and not re.match(r"\s*(,|$)", part):
            # What came before was a body, unless it initialises a member or a base.
            yield " ".join(said.split())
            said = part
        else:
            said += part
    yield " ".join(said.split())


def without_arguments(statement: str) -> str:
    """Of templates."""
    while (less := re.sub(r"<[^<>]*>", "", statement)) != statement:
        statement = less
    return re.sub(r"^(template\s*(requires\b[^;]*?\s(?=\w+ ))?)+", "", statement).strip()


def count(name: str, body: str) -> tuple[int, int]:
    members = methods = 0
    for statement in statements(body):
        is_operator = "operator" in statement
        plain = statement if is_operator else without_arguments(statement)
        if not plain or NO_MEMBER.match(plain) or CONSTANT.search(plain):
            continue
        declared = plain.partition("=")[0]
        if is_operator or "()" in declared:
            is_made = re.search(rf"(^|[\s~]){name}\s*\(\)", declared)
            assigns = "operator=(" in plain.replace(" ", "")
            methods += not (is_made or assigns or plain.endswith("delete"))
        else:
            members += 1 + plain.count(",")
    return members, methods


def sizes_in(code: str, path: Path) -> Iterator[Size]:
    code = NOT_CODE.sub(" ", code)
    for head in HEAD.finditer(code):
        yield Size(head[1], path, *count(head[1], inside(code, head.end() - 1)))


def all_sizes() -> list[Size]:
    headers = [*ROOT.glob("src/**/*.h"), *ROOT.glob("include/**/*.h")]
    return [
        size
        for path in sorted(headers)
        for size in sizes_in(path.read_text(), path.relative_to(ROOT))
    ]


def main() -> int:
    sizes = all_sizes()
    if sys.argv[1:] == ["--list"]:
        for size in sorted(sizes, key=lambda each: -max(each.members * 1.5, each.methods))[:40]:
            print(size)
        return 0
    large = [size for size in sizes if size.is_too_large()]
    found = [f"{size}; divide it" for size in large if size.name not in ALLOWED]
    small = ALLOWED.keys() - {size.name for size in large}
    found += [f"{name} is no longer too large: take it off the list" for name in sorted(small)]
    there = {size.path.as_posix() for size in sizes if size.is_named()}
    found += [f"{path} has no {NAMED[path]}: mend NAMED" for path in sorted(NAMED.keys() - there)]
    sys.stderr.write("".join(f"check_classes: {each}\n" for each in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
