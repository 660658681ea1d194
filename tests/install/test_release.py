"""`make release`: what it refuses, and what it leaves in dist/.

The wheel itself is a stand-in, but for the long test.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTS = (ROOT / "CMakeLists.txt").read_text()
(VERSION,) = re.findall(r"^project\(tensorbus VERSION ([0-9.]+)", LISTS, re.MULTILINE)
TRANSFER = Path(__file__).parent / "first_transfer.py"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clean clone whose changelog has the version."""
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(ROOT), str(folder))
    # What is being tested may not be committed yet.
    for tool in ("tools/release", "tools/pythons"):
        shutil.copy(ROOT / tool, folder / tool)
        git(folder, "add", tool)
    text = (folder / "CHANGELOG.md").read_text()
    named = text.replace("## Unreleased", f"## {VERSION}", 1)
    (folder / "CHANGELOG.md").write_text(named)
    commit(folder)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / ".git/info/exclude").write_text(".venv\n")  # a link is no folder to .gitignore
    return folder


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, timeout=60)


def commit(folder: Path) -> None:
    git(folder, "commit", "-q", "-a", "--allow-empty", "-m", "The release")


def put_program(path: Path, shell: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{shell}\n")
    path.chmod(0o755)


def release(folder: Path, tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """With a `make` that packs a wheel of nothing and says how it was called, and no Pythons."""
    programs = tmp_path / "bin"
    pack = "mkdir -p dist && echo wheel >dist/tensorbus-cp311.whl"
    put_program(programs / "make", f'{pack} && echo "make $*"')
    for minor in (10, *range(12, 20)):
        if not (programs / f"python3.{minor}").exists():
            put_program(programs / f"python3.{minor}", "exit 1")
    return subprocess.run(
        [folder / "tools/release"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)} | env,
    )


def test_a_release_has_wheels_sources_notes_and_checksums(clone: Path, tmp_path: Path):
    done = release(clone, tmp_path)
    assert done.returncode == 0, done.stderr
    dist = clone / "dist"
    names = {path.name for path in dist.iterdir()}
    sources = f"tensorbus-{VERSION}.tar.gz"
    assert names == {"tensorbus-cp311.whl", sources, "NOTES.md", "SHA256SUMS"}
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=dist, check=True)
    assert (dist / "NOTES.md").read_text().startswith("### Added\n")
    with tarfile.open(dist / sources) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "src/base/clock.cc", "python/tensorbus/__init__.py"} <= held
    assert not any(name.startswith((".venv", "build", "dist", ".sources")) for name in held)


def test_the_wheel_for_later_pythons_is_made_with_the_first_that_has_headers(
    clone: Path, tmp_path: Path
):
    """One on the path before one of pyenv."""
    pyenv = tmp_path / ".pyenv/versions"
    put_program(pyenv / "3.12.0/bin/python", "exit 1")  # without headers
    put_program(pyenv / "3.13.0/bin/python", "echo 3.13")
    put_program(pyenv / "3.14.0/bin/python", "echo 3.14")
    assert f"PYTHONS={pyenv}/3.13.0/bin/python\n" in release(clone, tmp_path).stdout
    put_program(tmp_path / "bin/python3.14", "echo 3.14")
    assert f"PYTHONS={tmp_path}/bin/python3.14\n" in release(clone, tmp_path).stdout


def test_the_wheel_for_later_pythons_is_made_with_the_one_that_is_named(
    clone: Path, tmp_path: Path
):
    put_program(tmp_path / "bin/python3.12", "echo 3.12")
    assert "PYTHONS=python3.13\n" in release(clone, tmp_path, PYTHONS="python3.13").stdout
    assert "PYTHONS=\n" in release(clone, tmp_path, PYTHONS="").stdout


def test_a_wheel_for_python_3_10_is_made_where_it_is(clone: Path, tmp_path: Path):
    earlier, later = tmp_path / "bin/python3.10", tmp_path / "bin/python3.14"
    put_program(earlier, "echo 3.10")
    assert f"PYTHONS={earlier}\n" in release(clone, tmp_path).stdout
    put_program(later, "echo 3.14")
    assert f"PYTHONS={later} {earlier}\n" in release(clone, tmp_path).stdout


def test_the_wheel_for_aarch64_is_made_unless_no_other_machine_is_wanted(
    clone: Path, tmp_path: Path
):
    assert "make --no-print-directory wheel MACHINE=aarch64\n" in release(clone, tmp_path).stdout
    assert "MACHINE" not in release(clone, tmp_path, MACHINES="").stdout


def test_make_keeps_the_wheel_for_aarch64():
    """What `make wheel MACHINE=aarch64` would run."""
    command = ["make", "--dry-run", "--no-print-directory", "wheel", "MACHINE=aarch64"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "tools/test_aarch64 dist"


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_a_real_release_can_be_installed_from_its_sources(clone: Path, tmp_path: Path):
    """The compiler's cache knows most of it. Later Pythons and aarch64 have tests of their own."""
    shutil.copytree(ROOT / ".sources", clone / ".sources")
    subprocess.run(
        ["make", "release", "PYTHONS=", "MACHINES="], cwd=clone, check=True, timeout=2700
    )
    dist = clone / "dist"
    (wheel,) = dist.glob("*.whl")
    (sources,) = dist.glob("*.tar.gz")
    assert {path.name for path in dist.iterdir()} == {
        *(wheel.name, sources.name),
        *("NOTES.md", "SHA256SUMS"),
    }
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=dist, check=True)
    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", fresh], check=True, timeout=120)
    pip = [fresh / "bin/pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, sources], check=True, timeout=2700, cwd=tmp_path)
    assert told_by(fresh / "bin/tensorbus", "--version") == f"tensorbus {VERSION}\n"
    assert "every element is right" in told_by(fresh / "bin/python", TRANSFER)


def told_by(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_not_committed_is_not_released(clone: Path, tmp_path: Path):
    (clone / "README.md").write_text("changed\n")
    assert "the work tree is not clean" in release(clone, tmp_path).stderr


def test_a_version_without_notes_is_not_released(clone: Path, tmp_path: Path):
    (clone / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- nothing\n")
    commit(clone)
    assert f'CHANGELOG.md has no section "## {VERSION}"' in release(clone, tmp_path).stderr


def test_a_tag_is_never_given_to_another_commit(clone: Path, tmp_path: Path):
    git(clone, "tag", f"v{VERSION}")
    commit(clone)
    assert f"v{VERSION} is another commit" in release(clone, tmp_path).stderr
