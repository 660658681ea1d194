"""Every libFuzzer target, for a while. Short versions of most are C++ tests, named after liars."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from two_at_a_time import two_at_a_time

ROOT = Path(__file__).resolve().parents[2]
TARGETS = sorted(path.stem for path in Path(__file__).parent.glob("*_fuzz.cc"))
SECONDS = 30


@pytest.fixture(scope="module")
def programs() -> Path:
    if not (ROOT / "build/fuzz/build.ninja").exists():
        subprocess.run(["cmake", "--preset", "fuzz", "--log-level=WARNING"], cwd=ROOT, check=True)
    subprocess.run(["cmake", "--build", ROOT / "build/fuzz"], check=True)
    return ROOT / "build/fuzz/bin"


def fuzz(program: Path, folder: Path) -> subprocess.CompletedProcess[str] | None:
    if not program.exists():
        return None
    # Not a child of this process: that would begin with the most memory this one has ever had.
    return subprocess.run(
        [
            "timeout",
            "600",
            program,
            f"-max_total_time={SECONDS}",
            "-timeout=20",
            "-rss_limit_mb=4096",
        ],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def fuzzed(
    request: pytest.FixtureRequest, programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str] | None]]]:
    with two_at_a_time(
        request.session,
        test_nothing_worse_than_an_error.__name__,
        "target",
        lambda target: fuzz(
            programs / f"fuzz_{target.removesuffix('_fuzz')}", tmp_path_factory.mktemp(target)
        ),
    ) as runs:
        yield runs


@pytest.mark.long
@pytest.mark.timeout(3600)  # the first one builds
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_worse_than_an_error(
    fuzzed: dict[str, Future[subprocess.CompletedProcess[str] | None]], target: str
) -> None:
    run = fuzzed[target].result()
    if run is None:
        pytest.skip("UCX was not found")
    assert run.returncode == 0, run.stderr[-4000:]
