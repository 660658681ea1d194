"""Fails when clang-tidy finds something: in the files named, or without any in the whole product.

.clang-tidy says what it looks for. Nothing is built. All of the product takes minutes: `make tidy`
reads it, a room at a time; pre-commit names what has changed.
"""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from check_clang import FLAGS, LEFT_OUT, ROOT, generated, rooms


def complaints(path: Path) -> str:
    """What clang-tidy says of a file and of what it includes of ours; nothing if all is well."""
    command = ["clang-tidy", "--quiet", f"--config-file={ROOT / '.clang-tidy'}", str(path)]
    with generated() as option:
        command += ["--", "-x", "c++", *FLAGS, option]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr if run.returncode else ""


def read(paths: list[Path]) -> str:
    with ThreadPoolExecutor(2) as two_at_a_time:
        return "".join(two_at_a_time.map(complaints, paths))


def read_all() -> str:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"room_{number}.cc" for number, _ in enumerate(rooms())]
        for path, code in zip(paths, rooms(), strict=True):
            path.write_text(code)
        return read(paths)


def main() -> int:
    named = [Path(name).resolve() for name in sys.argv[1:]]
    found = read([path for path in named if not LEFT_OUT.search(str(path))])
    found += "" if named else read_all()
    sys.stderr.write(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
