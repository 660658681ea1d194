"""Every libFuzzer target, for a while. Short versions of most are C++ tests, named after liars."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = sorted(path.stem for path in Path(__file__).parent.glob("*_fuzz.cc"))
SECONDS = 30


@pytest.fixture(scope="module")
def programs() -> Path:
    if not (ROOT / "build/fuzz/build.ninja").exists():
        subprocess.run(["cmake", "--preset", "fuzz", "--log-level=WARNING"], cwd=ROOT, check=True)
    subprocess.run(["cmake", "--build", ROOT / "build/fuzz"], check=True)
    return ROOT / "build/fuzz/bin"


@pytest.mark.long
@pytest.mark.timeout(3600)  # the first one builds
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_worse_than_an_error(programs: Path, target: str, tmp_path: Path) -> None:
    program = programs / f"fuzz_{target.removesuffix('_fuzz')}"
    if not program.exists():
        pytest.skip("UCX was not found")
    # Not a child of this process: that would begin with the most memory this one has ever had.
    run = subprocess.run(
        [
            "timeout",
            "600",
            program,
            f"-max_total_time={SECONDS}",
            "-timeout=20",
            "-rss_limit_mb=4096",
        ],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
