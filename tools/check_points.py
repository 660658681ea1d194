"""Fails when a numbered point of a finished part has no test that names it.

A Python test names its points with ``@pytest.mark.proves("K1", ...)``, a C++ test with a comment
``// proves: K1, ...`` above it.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The points of the parts that are finished, as the specification numbers them.
FINISHED: dict[str, list[str]] = {
    "store": [f"K{n}" for n in range(1, 10)],
    "plan": [f"B4.{n}" for n in range(1, 6)],
    "bus": [
        f"B{section}.{n}"
        for section, count in {1: 9, 2: 3, 3: 17, 5: 18}.items()
        for n in range(1, count + 1)
    ],
    "ray": [f"R{n}" for n in range(1, 14)],
    "push_pull": [f"P{n}" for n in range(1, 13)],
}

PYTHON_MARK = re.compile(r"mark\.proves\(([^)]*)\)")
QUOTED = re.compile(r"""["']([A-Z]\d+(?:\.\d+)?)["']""")
CXX_COMMENT = re.compile(r"//\s*proves:\s*(.*)")
POINT = re.compile(r"[A-Z]\d+(?:\.\d+)?")


def points_named() -> dict[str, list[str]]:
    """Which files name which point."""
    named: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for arguments in PYTHON_MARK.findall(path.read_text()):
            for point in QUOTED.findall(arguments):
                named.setdefault(point, []).append(str(path.relative_to(ROOT)))
    for folder in ("src", "tests"):
        for path in sorted((ROOT / folder).rglob("*_test.cc")):
            for comment in CXX_COMMENT.findall(path.read_text()):
                for point in POINT.findall(comment):
                    named.setdefault(point, []).append(str(path.relative_to(ROOT)))
    return named


def main() -> int:
    named = points_named()
    if "--list" in sys.argv:
        for point in sorted(named, key=lambda p: (p[0], [int(n) for n in p[1:].split(".")])):
            print(f"{point}: {', '.join(sorted(set(named[point])))}")
    missing = [
        f"{part}: {point}"
        for part, points in FINISHED.items()
        for point in points
        if point not in named
    ]
    for point in missing:
        print(f"no test names the point {point}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
