"""Our declarations of the driver's interface are NVIDIA's."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_path("purelib"))
PLACES = [*SITE.glob("nvidia/*/include"), *Path("/usr/local").glob("cuda*/include")]
HEADERS = [place for place in PLACES if (place / "cuda.h").exists()]


def compiled(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    source = ROOT / "tests/device/abi_check.cc"
    return subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'src'}", *options, "-isystem",
         str(folder), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.proves("V1.2")
@pytest.mark.skipif(not HEADERS, reason="there is no cuda.h: pip install nvidia-cuda-runtime-cu12")
@pytest.mark.parametrize("folder", HEADERS, ids=str)
def test_they_are_those_of_the_real_header(folder: Path):
    done = compiled(folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not HEADERS, reason="there is no cuda.h: pip install nvidia-cuda-runtime-cu12")
def test_a_wrong_one_is_seen(tmp_path: Path):
    """That the check checks: `cuda.h` with another value, and with a parameter more."""
    real = (HEADERS[0] / "cuda.h").read_text()
    for old, new in (
        ("CUDA_ERROR_NOT_READY                      = 600", "CUDA_ERROR_NOT_READY = 601"),
        ("CUDAAPI cuMemFree(CUdeviceptr dptr)", "CUDAAPI cuMemFree(CUdeviceptr dptr, int other)"),
    ):
        assert old in real
        (tmp_path / "cuda.h").write_text(real.replace(old, new))
        done = compiled(tmp_path)
        assert done.returncode != 0
        assert "static assertion failed" in done.stderr or "static_assert" in done.stderr
