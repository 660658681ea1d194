"""The stand-in driver, for processes that tests start: this one loads none."""

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "release"
MODES = {
    "lazy": {"STANDIN_LAZY": "1"},
    "random": {"STANDIN_DELAY_US": "1000", "STANDIN_SEED": "7"},
}


@cache
def standin_folder() -> Path:
    subprocess.run(["cmake", "--build", str(BUILD), "--target", "standin_cuda"], check=True)
    return BUILD / "standin"


@pytest.fixture(params=MODES)
def standin(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The environment of a process that finds the stand-in, in each of its modes."""
    return standin_environment(request.param)


def standin_environment(mode: str) -> dict[str, str]:
    return MODES[mode] | {
        "LD_LIBRARY_PATH": str(standin_folder()),
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
