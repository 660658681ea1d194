"""UCX is found at run time: not before it is needed, and what is found must fit."""

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "tensorbus"
OLD = """
void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release) {
  *major = 1; *minor = 9; *release = 4;
}
const char *ucp_get_version_string(void) { return "1.9.4"; }
"""


def doctor(ucx: Path) -> str:
    done = subprocess.run(
        [PROGRAM, "doctor", "--bind", "127.0.0.1"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"TENSORBUS_UCX": str(ucx), "PATH": "/usr/bin:/bin"},
    )
    return done.stdout + done.stderr


def old_ucx(folder: Path) -> Path:
    """A library with all the functions that ours looks for, of a version that is too old."""
    header = Path(__file__).parents[2] / "src/fabric/ucx/library.h"
    functions = re.findall(r"EACH\((\w+)\)", header.read_text())
    defined = ("ucp_get_version", "ucp_get_version_string")
    source = folder / "old.c"
    stubs = [f"void {name}(void) {{}}" for name in functions if name not in defined]
    source.write_text(OLD + "\n".join(stubs))
    (folder / "lib").mkdir()
    library = folder / "lib/libucp.so.0"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", source, "-o", library], check=True)
    return folder


def test_nothing_loads_ucx_before_a_network_is_asked_for():
    code = """
import tensorbus
from tensorbus.kvstore import StoreServer
with StoreServer(port=0) as store, tensorbus.TensorBusClient.embedded(store.url, rank=0):
    with tensorbus.Endpoint(name="here"):
        assert "libuc" not in open("/proc/self/maps").read()
with tensorbus.Endpoint(name="here", bind="127.0.0.1"):
    assert "libucp" in open("/proc/self/maps").read()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_where_there_is_none_doctor_says_what_to_install(tmp_path):
    told = doctor(tmp_path / "libucp.so.0")
    assert f"{tmp_path}/libucp.so.0" in told
    assert "libucx0" in told


def test_one_that_is_too_old_is_refused_by_its_version(tmp_path):
    assert "it is 1.9.4, and tensorbus needs 1.13 or later" in doctor(old_ucx(tmp_path))


def test_who_binds_without_ucx_is_told(tmp_path):
    code = "import tensorbus; tensorbus.Endpoint(name='here', bind='127.0.0.1')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={"TENSORBUS_UCX": str(tmp_path / "none"), "PATH": ""},
    )
    assert "UnsupportedError" in done.stderr
    assert "there is no UCX on this machine" in done.stderr
