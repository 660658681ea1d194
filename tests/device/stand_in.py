"""The stand-in driver for tests in Python, and environments with packages that only these need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
FOLDER = BUILD / "standin"


def build_standin() -> Path:
    """The folder of the stand-in's libcuda.so.1."""
    command = ["cmake", "--build", str(BUILD), "--target", "standin_cuda"]
    subprocess.run(command, check=True, capture_output=True)
    assert (FOLDER / "libcuda.so.1").exists()
    return FOLDER


def with_standin(**variables: str) -> dict[str, str]:
    """The environment of a process that finds the stand-in where a driver would be."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STANDIN_")}
    return kept | {"LD_LIBRARY_PATH": str(build_standin())} | variables


def make_environment(folder: Path, *packages: str) -> Path:
    """Its interpreter. In a folder of its own: nothing of this is needed to build or to run."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", *packages]
    subprocess.run(install, check=True)
    return python
