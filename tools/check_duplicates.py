"""Fails when more than 12 lines of code stand in two places.

Comments, blank lines, includes and imports do not count, nor does how a line is indented or broken
up by spaces. What is there twice because no shared piece could replace it is known by a line of it:
ALLOWED, with the reason.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WINDOW = 13
FOLDERS = ("bench", "examples", "include", "packages", "python", "src", "tests", "tools")
ENDINGS = {".cc", ".h", ".py", ".pyi"}
ALLOWED = {
    "bool erase(const std::string& key, Deadline deadline) override;": "the interface of the "
    "store, as each of its implementations declares it: a class must name what it overrides",
}
NO_CODE = re.compile(r"(//|#|(import|from)\b).*|$")


class Line(NamedTuple):
    path: str
    number: int
    code: str


def lines_of(path: Path) -> list[Line]:
    where = path.relative_to(ROOT).as_posix()
    texts = (" ".join(line.split()) for line in path.read_text().splitlines())
    return [Line(where, at, text) for at, text in enumerate(texts, 1) if not NO_CODE.match(text)]


def duplicates() -> list[str]:
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    first_seen: dict[tuple[str, ...], Line] = {}
    found = []
    for lines in (lines_of(path) for path in paths if path.suffix in ENDINGS):
        goes_on = False
        for at in range(len(lines) - WINDOW + 1):
            key = tuple(line.code for line in lines[at : at + WINDOW])
            here, first = lines[at], first_seen.setdefault(key, lines[at])
            is_double = first is not here and ALLOWED.keys().isdisjoint(key)
            if is_double and not goes_on:
                found.append(
                    f"{here.path}:{here.number} repeats {first.path}:{first.number}; share what "
                    f"they have in common"
                )
            goes_on = is_double
    return found


def main() -> int:
    found = duplicates()
    sys.stderr.write("".join(f"check_duplicates: {each}\n" for each in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
