"""Fails when what a mutex guards is touched without the mutex, as far as clang can tell.

Members say which mutex guards them (base/mutex.h). clang's -Wthread-safety looks at every source
that reads that header, without a build; sources of one room are read together, as the build does.
Tests are left out: they share little between threads, and join them.
"""

import itertools
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import nanobind

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "src/base/mutex.h"
FOLDERS = [ROOT / "src", ROOT / "include", ROOT / "python/bindings"]
SYSTEM = [sysconfig.get_path("include"), nanobind.include_dir()]
# Other warnings are the build's.
CLANG = [
    *("clang++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-"),
    *("-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"),
    *(f"-I{folder}" for folder in FOLDERS),
    *itertools.chain.from_iterable(("-isystem", folder) for folder in SYSTEM),
    '-DTENSORBUS_VERSION=""',
]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
FOR_TESTS = re.compile(r"_test\.cc$|/testing/|/simulation/|/conformance/")


@cache
def headers_of(path: Path) -> frozenset[Path]:
    """The headers of ours that a file reads, itself or through others."""
    named = {folder / name for name in INCLUDE.findall(path.read_text()) for folder in FOLDERS}
    found = {header for header in named if header.exists()}
    return frozenset(found.union(*map(headers_of, found)))


def sources() -> list[Path]:
    """Sources of the product that read the header."""
    all_of_them = [path for folder in FOLDERS for path in sorted(folder.rglob("*.cc"))]
    product = [path for path in all_of_them if not FOR_TESTS.search(str(path))]
    return [path for path in product if HEADER in headers_of(path)]


def complaints(code: str) -> str:
    """What clang says of this code; nothing if all is well."""
    run = subprocess.run(CLANG, input=code, capture_output=True, text=True, check=False)
    return run.stderr if run.returncode else ""


def main() -> int:
    rooms = itertools.groupby(sources(), key=lambda path: path.parent)
    codes = ["".join(f'#include "{path}"\n' for path in files) for _, files in rooms]
    with ThreadPoolExecutor(2) as two_at_a_time:
        found = "".join(two_at_a_time.map(complaints, codes))
    sys.stderr.write(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
