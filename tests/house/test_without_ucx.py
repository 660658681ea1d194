"""A build without UCX: it links, same-host fabrics work, and the network says why it does not."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_build_without_ucx_works(tmp_path: Path) -> None:
    build = tmp_path / "build"

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=1500, cwd=ROOT, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # The flags of the usual test build, so that the compiler's cache knows most of it.
    run("cmake", "--preset", "asan", "-B", build, "-DTENSORBUS_UCX=OFF", "--log-level=WARNING")
    run("cmake", "--build", build, "--target", "fabric_test", "program")
    said = run(build / "bin/fabric_test", "--gtest_filter=NoUcx.*:*Reads*/memory:*Reads*/shm_*")
    assert "NoUcx.NobodyIsReachedThroughIt" in said
    assert "/ucx" not in run(build / "bin/fabric_test", "--gtest_list_tests")
    libraries = run("ldd", build / "bin/tensorbus")
    assert "libucp" not in libraries
