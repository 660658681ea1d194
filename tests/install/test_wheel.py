"""The wheel that `make wheel` packs: what is in it, and that it works where only Python is."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tensorbus

ROOT = Path(__file__).resolve().parents[2]
FIRST_TRANSFER = Path(__file__).parent / "first_transfer.py"
REDISTRIBUTE = Path(__file__).parent / "redistribute_once.py"
# By a program in C++, of what the library throws.
CAUGHT = 'caught: store URL: unknown scheme "nowhere"'


def run(*command: str | Path, timeout: float = 120, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd="/", env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packed from what `make build` has built."""
    folder = tmp_path_factory.mktemp("wheel")
    return Path(run(sys.executable, ROOT / "tools/wheel.py", "--output", folder).strip())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel alone, and the numpy of this one."""
    return environment_with(wheel, Path(sys.executable), tmp_path_factory.mktemp("clean"))


def environment_with(wheel: Path, python: Path, folder: Path) -> Path:
    run(python, "-m", "venv", "--without-pip", folder)
    inside = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", inside]
    run(*pip, "install", "-q", "--no-index", "--no-deps", wheel)
    return folder


def borrow_numpy(environment: Path) -> dict[str, str]:
    import numpy as np

    folder = environment / "borrowed"
    folder.mkdir(exist_ok=True)
    packages = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to(packages / name)
    return {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"]}


def test_the_wheel_runs_anywhere(wheel: Path):
    """No library of others, no folder of this machine, no symbol that old systems lack."""
    told = run(sys.executable, ROOT / "tools/check_wheel.py", wheel)
    assert told == "wheel: 1 checked, nothing is wrong\n"


def test_a_wheel_that_does_not_run_anywhere_is_found_out(wheel: Path, tmp_path: Path):
    bad = tmp_path / wheel.name
    shutil.copy(wheel, bad)
    with zipfile.ZipFile(bad, "a") as archive:
        archive.write("/bin/bash", "tensorbus/shell")
        archive.writestr("tensorbus/where.txt", f"built in {ROOT}/build")
    done = subprocess.run(
        [sys.executable, ROOT / "tools/check_wheel.py", bad], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "tensorbus/shell: it needs libtinfo.so" in done.stdout
    assert f"tensorbus/where.txt: it names {ROOT}/" in done.stdout


def test_the_wheel_has_the_licences_of_what_is_linked_in(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        named = re.findall(r"^License-File: (.+)$", archive.read(metadata).decode(), re.MULTILINE)
        folder = metadata.replace("METADATA", "licenses")
        texts = {name: archive.read(f"{folder}/{name}").decode() for name in named}
    assert "Victor Zverovich" in texts["others/fmt"]
    assert "OpenLDAP" in texts["others/lmdb"]
    assert "Wenzel Jakob" in texts["others/nanobind"]
    assert "Thibaut Goetghebuer-Planchon" in texts["others/nanobind"]  # its map's
    # The text that the notices of OpenSSL and Highway refer to.
    assert "Apache License" in texts["LICENSE"]


def test_an_environment_with_the_wheel_alone_has_package_and_program(environment: Path):
    code = "import tensorbus; print(tensorbus.__file__, tensorbus.__version__)"
    file, version = run(environment / "bin/python", "-c", code).split()
    assert file.startswith(str(environment))
    assert version == tensorbus.__version__
    assert run(environment / "bin/tensorbus", "--version").strip() == f"tensorbus {version}"


def test_a_version_goes_from_process_to_process(environment: Path):
    told = run(environment / "bin/python", FIRST_TRANSFER, env=borrow_numpy(environment))
    assert "every element is right" in told


def test_the_package_says_where_cpp_finds_it(environment: Path):
    code = "import tensorbus as t; print(t.include_dir()); print(t.cmake_dir())"
    include, cmake = run(environment / "bin/python", "-c", code).splitlines()
    headers = {path.name for path in (ROOT / "include/tensorbus").iterdir()}
    assert headers == {path.name for path in Path(include, "tensorbus").iterdir()}
    assert Path(cmake, "tensorbus-config.cmake").is_file()
    with pytest.raises(RuntimeError, match="cmake --install build/release"):
        tensorbus.cmake_dir()


def pythons(*minor: str) -> list[Path]:
    """From 3.12 on, or of that minor version, with their headers."""
    return [Path(line) for line in run(ROOT / "tools/pythons", *minor).splitlines()]


def wheel_for(python: Path, folder: Path) -> Path:
    run(ROOT / "tools/build_for", python, folder, timeout=3000)
    (wheel,) = folder.iterdir()
    run(sys.executable, ROOT / "tools/check_wheel.py", wheel)
    return wheel


def serves(python: Path, wheel: Path, folder: Path) -> None:
    """A wheel, in an environment of an interpreter: between processes and within one."""
    inside = environment_with(wheel, python, folder) / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", inside]
    run(*pip, "install", "-q", "--only-binary", ":all:", "numpy>=2.1", timeout=300)
    for script in (FIRST_TRANSFER, REDISTRIBUTE):
        assert "every element is right" in run(inside, script)


@pytest.fixture(scope="module")
def earlier_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For Python 3.10."""
    found = pythons("10")
    if not found:
        pytest.skip("no Python 3.10 with its headers is here")
    return wheel_for(found[0], tmp_path_factory.mktemp("earlier"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_wheel_of_its_own_serves_python_3_10(earlier_wheel: Path, tmp_path: Path):
    assert "-cp310-cp310-manylinux" in earlier_wheel.name
    serves(pythons("10")[0], earlier_wheel, tmp_path / "environment")


@pytest.fixture(scope="module")
def later_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For Python 3.12 and later, made with the first of them that is here."""
    found = pythons()
    if not found:
        pytest.skip("no Python from 3.12 on with its headers is here")
    return wheel_for(found[0], tmp_path_factory.mktemp("later"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_one_wheel_serves_all_later_pythons(later_wheel: Path, tmp_path: Path):
    assert "-cp312-abi3-manylinux" in later_wheel.name
    for number, python in enumerate(pythons()):
        serves(python, later_wheel, tmp_path / f"environment{number}")


def download(folder: Path, minor: int, *names: str) -> Path:
    """Wheels of others, for a Python."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--no-deps"]
    run(*command, "--python-version", f"3.{minor}", "-d", folder, *names, timeout=300)
    return folder


def try_wheel(*arguments: str | Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "tools/try_wheel", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=3000, env=os.environ | env
    )


def check_trial(done: subprocess.CompletedProcess[str], torch: bool) -> None:
    """What `tools/try_wheel` has printed of an environment, with torch or without."""
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    assert "every element is right" in done.stdout
    seconds = re.search(r"to the first verified transfer: ([\d.]+) s", done.stdout)
    assert seconds is not None
    assert float(seconds[1]) < 60
    examples = re.search(r"(\d+) of (\d+) examples of the README run", done.stdout)
    assert examples is not None
    ran, there = int(examples[1]), int(examples[2])
    assert 0 < ran <= there
    assert ran == there or not torch
    assert CAUGHT in done.stdout
    assert "hello from the store" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", ["bookworm", "trixie", "jammy"])
def test_a_fresh_root_needs_nothing_else(
    suite: str, request: pytest.FixtureRequest, tmp_path: Path
):
    """`tools/try_wheel`: without a compiler or a network, then find_package with a compiler."""
    minor = {"bookworm": 11, "trixie": 13, "jammy": 10}[suite]
    fixture = {10: "earlier_wheel", 11: "wheel", 13: "later_wheel"}[minor]
    wheel = request.getfixturevalue(fixture)
    packages = download(tmp_path / "packages", minor, "numpy>=2.1", "libucx-cu12")
    run(ROOT / "tools/setup", "--roots", timeout=600)
    torch = torch_of(minor)
    done = try_wheel(suite, wheel, packages, env=torch)
    if done.returncode == 77:
        assert suite != "bookworm" or os.geteuid() != 0, done.stderr
        pytest.skip(done.stderr.strip())
    check_trial(done, bool(torch))
    assert "site-packages/libucx/lib/libucp" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_plain_environment_needs_nothing_else(wheel: Path, tmp_path: Path):
    packages = download(tmp_path / "packages", sys.version_info.minor, "numpy>=2.1")
    done = try_wheel(
        "--venv", sys.executable, wheel, packages, env=torch_of(sys.version_info.minor)
    )
    check_trial(done, torch=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a root")
@pytest.mark.parametrize(("suite", "code"), [("bookworm", 1), ("trixie", 77)])
def test_a_root_that_cannot_be_made_is_skipped_unless_it_is_bookworm(suite, code, tmp_path):
    fake = tmp_path / "bin/debootstrap"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho E: no such mirror\nexit 1\n")
    fake.chmod(0o755)
    done = try_wheel(suite, "no.whl", tmp_path, env={"PATH": f"{fake.parent}:{os.environ['PATH']}"})
    assert done.returncode == code
    assert "no root could be made: E: no such mirror" in done.stderr


def torch_of(minor: int) -> dict[str, str]:
    """The packages of this interpreter, if a root's can use them."""
    import torch

    same = minor == sys.version_info.minor
    return {"TORCH": str(Path(torch.__file__).parents[1])} if same else {}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_aarch64(tmp_path: Path):
    told = run(ROOT / "tools/test_aarch64", tmp_path / "dist", timeout=3500)
    assert "aarch64: redistributed, every element is right" in told
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("-cp311-cp311-manylinux_2_34_aarch64.whl")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_pip_installs_from_sources_and_leaves_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With the system's shared libraries, and a shared object for C++ that exports the public."""
    sources, site = tmp_path / "sources", tmp_path / "site"
    sources.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "x", "-C", sources], input=archive.stdout, check=True)
    before = set(sources.rglob("*"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    assert run(*pip, "--target", site, sources, timeout=3500) == ""
    assert set(sources.rglob("*")) == before
    sdk = site / "tensorbus/sdk"
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    check = importlib.import_module("check_wheel")
    headers = "".join(header.read_text() for header in (sdk / "include/tensorbus").glob("*.h"))
    library = sdk / "lib/libtensorbus.so"
    assert list(check.faults_of_shared_object(library, check.declared_in(headers))) == []
    env = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"]}
    code = "import tensorbus; print(tensorbus.__file__, tensorbus.cmake_dir())"
    assert run(sys.executable, "-c", code, env=env).count(str(site)) == 2
