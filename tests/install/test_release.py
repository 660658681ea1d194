"""`make release`: what it refuses, and what it leaves in dist/. The wheel itself is a stand-in."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.1.0"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clean clone whose changelog has the version."""
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(ROOT), str(folder))
    # What is being tested may not be committed yet.
    shutil.copy(ROOT / "tools/release", folder / "tools/release")
    git(folder, "add", "tools/release")
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


def release(folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """With a `make` that packs a wheel of nothing."""
    make = tmp_path / "bin/make"
    make.parent.mkdir(exist_ok=True)
    make.write_text("#!/bin/sh\nmkdir -p dist && echo wheel >dist/tensorbus-cp311.whl\n")
    make.chmod(0o755)
    return subprocess.run(
        [folder / "tools/release"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PATH": f"{make.parent}:{os.environ['PATH']}"},
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
