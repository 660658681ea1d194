"""The example of the bus in Ray actors."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ray_cluster import SETTINGS, elsewhere

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_reshard.py"


@pytest.mark.timeout(180)
@pytest.mark.proves("R13")
@pytest.mark.skipif(elsewhere(), reason="it has a cluster of its own")
def test_two_groups_of_actors_with_different_layouts():
    folder = tempfile.mkdtemp(prefix="tbray", dir="/tmp")
    try:
        done = subprocess.run(
            [sys.executable, EXAMPLE],
            env=os.environ | SETTINGS | {"RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout.count("all engines have the new weights") == 3
    finally:
        shutil.rmtree(folder, ignore_errors=True)
