"""Fails when clang would not build the product, or finds that a mutex is not held.

The compiler of the build is another one; the fuzz targets are built by clang, and what it refuses
is found here instead of by them. Members say which mutex guards them (base/mutex.h), which clang
checks with -Wthread-safety. Nothing is built: sources of one room are read together, as the build
does. Tests are left out.
"""

import itertools
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import nanobind

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [ROOT / "src", ROOT / "include", ROOT / "python/bindings"]
SYSTEM = [sysconfig.get_path("include"), nanobind.include_dir()]
# The warnings of cmake/layer.cmake, and that about locks.
WARNINGS = ["all", "extra", "shadow", "conversion", "non-virtual-dtor", "thread-safety", "error"]
FLAGS = [
    "-std=c++20",
    *(f"-W{each}" for each in WARNINGS),
    *(f"-I{folder}" for folder in FOLDERS),
    *itertools.chain.from_iterable(("-isystem", folder) for folder in SYSTEM),
    '-DTENSORBUS_VERSION=""',
]
CLANG = ["clang++", *FLAGS, "-fsyntax-only", "-x", "c++", "-"]
# Tests, and the twin of another source: a build has one of the two.
LEFT_OUT = re.compile(r"_test\.cc$|/testing/|/simulation/|/conformance/|/no_ucx\.cc$")
# What the build makes, which need not have run: any text in its place.
GENERATED = {"program_page.inc": '""'}


def sources() -> list[Path]:
    """Those of the product."""
    all_of_them = [path for folder in FOLDERS for path in sorted(folder.rglob("*.cc"))]
    return [path for path in all_of_them if not LEFT_OUT.search(str(path))]


@contextmanager
def generated() -> Iterator[str]:
    """The option that has clang find what stands for the files that the build makes."""
    with TemporaryDirectory() as folder:
        for name, text in GENERATED.items():
            (Path(folder) / name).write_text(text)
        yield f"-I{folder}"


def complaints(code: str) -> str:
    """What clang says of this code; nothing if all is well."""
    with generated() as option:
        run = subprocess.run(
            [*CLANG, option], input=code, capture_output=True, text=True, check=False
        )
    return run.stderr if run.returncode else ""


def rooms() -> list[str]:
    """For each room, code that is all its sources."""
    by_room = itertools.groupby(sources(), key=lambda path: path.parent)
    return ["".join(f'#include "{path}"\n' for path in files) for _, files in by_room]


def main() -> int:
    with ThreadPoolExecutor(2) as two_at_a_time:
        found = "".join(two_at_a_time.map(complaints, rooms()))
    sys.stderr.write(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
