"""Runs benchmarks: ``bench/run.py [PART...]``, by default all parts that exist.

A part is a list of commands. Each prints its own table and, told ``--json FILE``, writes a list of
rows there: objects with a ``name`` and whatever was measured. ``build/bench/PART.json`` gets the
rows of all commands of a part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build" / "bench" / "bin"
RESULTS = ROOT / "build" / "bench"
LONGEST = 3600  # seconds; what takes longer hangs


def program(name: str) -> list[Path | str]:
    """A C++ program, built from ``bench/NAME.cc``."""
    return [PROGRAMS / name]


def script(name: str) -> list[Path | str]:
    return [sys.executable, ROOT / "bench" / name]


PARTS: dict[str, list[list[Path | str]]] = {
    "store": [script("store.py")],
    "plan": [program("plan_bench")],
    "copy": [program("copy_bench"), script("intake.py")],
    "delta": [program("delta_bench"), script("delta.py"), script("delta_pull.py")],
    "bus": [
        program("bus_bench"),
        program("bus_small_bench"),
        program("bus_network_bench"),
        script("bus_gloo.py"),
        script("state_dict.py"),
        script("registration.py"),
    ],
    "link": [program("link_bench"), script("link.py"), program("registration_bench")],
    "fabric": [program("fabric_bench"), program("fabric_ucx_bench"), script("fabric_gloo.py")],
    "device": [program("device_bench")],
    "observe": [program("observe_bench")],
    "ray": [script("ray_transport.py")],
    "push_pull": [program("push_pull_bench"), script("push_pull.py")],
}


def environment() -> dict[str, str]:
    """Programs that start Python start this one."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def exists(command: list[Path | str]) -> bool:
    return Path(command[-1]).exists()


def run_command(command: list[Path | str]) -> str:
    """How it failed; empty if it did not."""
    try:
        ended = subprocess.run(command, env=environment(), timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return f"was ended after {LONGEST} seconds"
    return f"failed ({ended.returncode})" if ended.returncode else ""


def run(part: str) -> bool:
    """Whether all commands of the part succeeded; a failure does not hide the other rows."""
    rows: list[object] = []
    succeeded = True
    for command in filter(exists, PARTS[part]):
        print(f"== {part}: {Path(command[-1]).stem}", flush=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            if failure := run_command([*command, "--json", file.name]):
                print(f"bench: {command[-1]} {failure}", file=sys.stderr)
                succeeded = False
                continue
            rows += json.loads(Path(file.name).read_text())
        print()
    target = RESULTS / f"{part}.json"
    target.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(rows)} rows in {target.relative_to(ROOT)}\n")
    return succeeded


def main() -> int:
    available = [part for part, commands in PARTS.items() if any(map(exists, commands))]
    parser = argparse.ArgumentParser(description="Runs benchmarks.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(available))
    parts = parser.parse_args().parts or available
    if unknown := [part for part in parts if part not in available]:
        parser.error(f"no such part: {', '.join(unknown)}; there are: {', '.join(available)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    outcomes = [run(part) for part in parts]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
