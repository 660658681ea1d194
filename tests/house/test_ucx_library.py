"""UCX is found at run time: not before it is needed, and what is found must fit."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorbus

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


# Prints the libucp that this process has loaded, by its file.
LOADED = """
import re, tensorbus
with tensorbus.Endpoint(name="here", bind="127.0.0.1"):
    print(*sorted(set(re.findall(r"/\\S*libucp\\S*", open("/proc/self/maps").read()))))
"""


@pytest.fixture(scope="module")
def system_ucx() -> Path:
    """The system's libucp, which needs the rest of UCX from where the system has it."""
    told = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    found = re.search(r"libucp\.so\.0 .*=> (\S+)", told.stdout)
    assert found is not None, "the system has no libucp.so.0, which tools/setup installs"
    return Path(found[1]).resolve()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment's site-packages with our package in it."""
    site = tmp_path / "env/lib/python3.11/site-packages"
    package = Path(tensorbus.__file__).parent
    shutil.copytree(package, site / "tensorbus", ignore=shutil.ignore_patterns("*.so"))
    (extension,) = package.glob("_core*.so")
    (site / "tensorbus" / extension.name).symlink_to(extension)
    return site


def put(library: Path, place: Path) -> Path:
    place.parent.mkdir(parents=True)
    shutil.copy(library, place)
    return place


def hide_the_systems(folder: Path) -> dict[str, str]:
    """The loader finds another library by the name of UCX's first."""
    libm = re.search(r"(/\S*/libm\.so\.6)", Path("/proc/self/maps").read_text())
    assert libm is not None
    put(Path(libm[1]), folder / "libucp.so.0")
    return {"LD_LIBRARY_PATH": str(folder)}


def loaded_by_python(site: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(site), "PATH": ""} | env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("variable", ["TENSORBUS_UCX", "UCX_ROOT"])
@pytest.mark.parametrize("place", ["lib", "lib64", "lib/x86_64-linux-gnu", "."])
def test_the_one_that_a_variable_names_is_loaded(variable, place, system_ucx, site, tmp_path):
    prefix = tmp_path / "prefix"
    library = put(system_ucx, prefix / place / "libucp.so.0")
    put(system_ucx, site / "libucx/lib/libucp.so.0")
    assert loaded_by_python(site, {variable: str(prefix)}) == str(library)


def test_our_variable_comes_before_that_of_ucx(system_ucx, site, tmp_path):
    ours = put(system_ucx, tmp_path / "ours/any-name.libucp.so")
    put(system_ucx, tmp_path / "root/lib/libucp.so.0")
    variables = {"TENSORBUS_UCX": str(ours), "UCX_ROOT": str(tmp_path / "root")}
    assert loaded_by_python(site, variables) == str(ours)


def test_the_systems_comes_before_those_of_python_packages(system_ucx, site):
    put(system_ucx, site / "libucx/lib/libucp.so.0")
    assert loaded_by_python(site, {}) == str(system_ucx)


@pytest.mark.parametrize("name", ["libucx/lib/libucp.so.0", "nixl_cu12.libs/libucp-1a2b.so.0.0.0"])
def test_without_the_systems_that_of_a_python_package_is_loaded(name, system_ucx, site, tmp_path):
    library = put(system_ucx, site / name)
    told = loaded_by_python(site, hide_the_systems(tmp_path / "first"))
    assert str(library) in told.split()
    assert str(system_ucx) not in told.split()


def test_the_program_finds_python_packages_of_its_environment(system_ucx, site, tmp_path):
    library = put(system_ucx, site / "libucx/lib/libucp.so.0")
    program = tmp_path / "env/bin/tensorbus"
    program.parent.mkdir()
    shutil.copy(PROGRAM, program)
    done = subprocess.run(
        [program, "doctor", "--bind", "127.0.0.1"],
        capture_output=True,
        text=True,
        timeout=60,
        env=hide_the_systems(tmp_path / "first"),
    )
    assert f"({library})" in done.stdout, done.stdout + done.stderr


def test_doctor_names_the_one_that_our_variable_names(system_ucx, tmp_path):
    library = put(system_ucx, tmp_path / "lib64/libucp.so.0")
    assert f"({library})" in doctor(tmp_path)
