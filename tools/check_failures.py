"""Fails when a row of docs/failure.md lacks something, or names a test that does not exist.

The last cell of a row names its tests: a file (`x_test.cc`, `room/x_test.cc`, `test_x.py`), a test
in one (`test_x.py::test_y`; `::test_y` for another in the same), a C++ test alone
(`AKilledPeerIsNamed`) or a folder (`tests/fuzz`).
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ["failure", "how it is seen", "error", "after", "test"]

QUOTED = re.compile(r"`([^`]+)`")
CXX_TEST = re.compile(r"\bTEST(?:_[FP])?\(\s*\w+,\s*(\w+)\s*\)")


class Tests:
    """The tests of this tree, by file."""

    def __init__(self) -> None:
        self._files: dict[str, list[Path]] = {}
        self._cxx: set[str] = set()
        for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src").rglob("*_test.cc")]:
            for name in (path.name, f"{path.parent.name}/{path.name}"):
                self._files.setdefault(name, []).append(path)
            if path.suffix == ".cc":
                self._cxx.update(CXX_TEST.findall(path.read_text()))
        self._last = ""

    def have(self, name: str) -> bool:
        file, _, test = name.partition("::")
        if file.endswith((".py", ".cc")):
            self._last = file
        if test:
            function = re.compile(rf"\bdef (?:test_)?{re.escape(test.removeprefix('test_'))}\(")
            paths = self._files.get(file or self._last, [])
            return any(function.search(path.read_text()) for path in paths)
        if file in self._files:
            return True
        return (ROOT / file).is_dir() if "/" in file else file in self._cxx


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def problems_of(text: str, tests: Tests) -> list[str]:
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|") or set(line) <= set("|-"):
            continue
        cells = cells_of(line)
        if cells == COLUMNS:
            continue
        where = f"line {number}"
        if len(cells) != len(COLUMNS):
            problems.append(f"{where}: {len(cells)} cells, not {len(COLUMNS)}")
            continue
        problems += [
            f'{where}: nothing under "{column}"'
            for column, cell in zip(COLUMNS, cells, strict=True)
            if not cell
        ]
        names = QUOTED.findall(cells[-1])
        if cells[-1] and not names:
            problems.append(f"{where}: names no test")
        problems += [f"{where}: there is no {name}" for name in names if not tests.have(name)]
    return problems


def main() -> int:
    page = ROOT / "docs" / "failure.md"
    problems = problems_of(page.read_text(), Tests())
    for problem in problems:
        print(f"{page.relative_to(ROOT)}, {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
