"""Fails when tests and docs/specification do not speak of the same points.

A page of the specification defines a point by a list item ``- **K1** ...``. A Python test names its
points with ``@pytest.mark.proves("K1", ...)``, a C++ test with a comment ``// proves: K1, ...``
above it. Benchmarks name those that say how fast something is, with the same comment or
``# proves: K1, ...``. ``--list`` shows who names what.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

DEFINITION = re.compile(r"^- \*\*([A-Z]\d+(?:\.\d+)?)\*\*", re.MULTILINE)
PYTHON_MARK = re.compile(r"mark\.proves\(([^)]*)\)")
QUOTED = re.compile(r"""["']([A-Z]\d+(?:\.\d+)?)["']""")
COMMENT = re.compile(r"^\s*(?://|#)\s*proves:\s*(.*)", re.MULTILINE)
POINT = re.compile(r"[A-Z]\d+(?:\.\d+)?")


def points_defined() -> dict[str, list[str]]:
    """Which pages define which point; a page that does so twice is there twice."""
    defined: dict[str, list[str]] = {}
    for path in sorted((ROOT / "docs" / "specification").glob("*.md")):
        for point in DEFINITION.findall(path.read_text()):
            defined.setdefault(point, []).append(str(path.relative_to(ROOT)))
    return defined


def points_named() -> dict[str, list[str]]:
    """Which files name which point."""
    named: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for arguments in PYTHON_MARK.findall(path.read_text()):
            for point in QUOTED.findall(arguments):
                named.setdefault(point, []).append(str(path.relative_to(ROOT)))
    for pattern in ("src/**/*_test.cc", "tests/**/*_test.cc", "bench/*.cc", "bench/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            for comment in COMMENT.findall(path.read_text()):
                for point in POINT.findall(comment):
                    named.setdefault(point, []).append(str(path.relative_to(ROOT)))
    return named


def problems_of(defined: dict[str, list[str]], named: dict[str, list[str]]) -> list[str]:
    problems = []
    for point, pages in defined.items():
        if len(pages) > 1:
            problems.append(f"the point {point} is defined twice: {', '.join(pages)}")
        if point not in named:
            problems.append(f"no test or benchmark names the point {point} of {pages[0]}")
    problems += [
        f"{files[0]} names the point {point}, which docs/specification does not define"
        for point, files in named.items()
        if point not in defined
    ]
    return problems


def main() -> int:
    named = points_named()
    if "--list" in sys.argv:
        for point in sorted(named, key=lambda p: (p[0], [int(n) for n in p[1:].split(".")])):
            print(f"{point}: {', '.join(sorted(set(named[point])))}")
    problems = problems_of(points_defined(), named)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
