"""Runs the examples of a README as a stranger would paste them: `readme.py README.md`.

Those that import torch are left out where there is none.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def of_the_program(block: str) -> str:
    """Without what builds or installs."""
    lines = [line for line in block.splitlines() if not re.match(r"(make|pip) ", line)]
    return "\n".join(lines)


def run(name: str, command: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    if done.returncode != 0:
        sys.exit(f"{name} fails:\n{done.stdout}{done.stderr}")


def main() -> None:
    text = Path(sys.argv[1]).read_text()
    has_torch = importlib.util.find_spec("torch") is not None
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    commands = [[sys.executable, "-c", block] for block in blocks(text, "python")]
    commands += [["bash", "-c", shell + of_the_program(block)] for block in blocks(text, "sh")]
    possible = [command for command in commands if has_torch or "torch" not in command[-1]]
    for command in possible:
        run(command[-1], command)
    print(f"{len(possible)} of {len(commands)} examples of the README run")


if __name__ == "__main__":
    main()
