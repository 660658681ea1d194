"""Packs what `make build` has built and the tests have used into a wheel; compiles nothing.

    tools/wheel.py [--build build/release] [--output dist] [--machine aarch64]

The package, the extension, the program and the SDK for C++ go in; the platform is the one that
auditwheel finds for the symbols they ask of the system; licences of what others wrote lie beside
ours. Prints the wheel's path.
"""

import argparse
import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scikit_build_core.build import prepare_metadata_for_build_wheel

ROOT = Path(__file__).resolve().parents[1]
# Of others, linked in: Debian's package whose copyright file has their notices.
LINKED = {
    "cli11": "libcli11-dev",
    "cpp-httplib": "libcpp-httplib-dev",
    "fmt": "libfmt-dev",
    "highway": "libhwy-dev",
    "libstdc++": "libstdc++-*-dev",
    "lmdb": "liblmdb-dev",
    "nlohmann-json": "nlohmann-json3-dev",
    "openssl": "libssl-dev",
    "xxhash": "libxxhash-dev",
}


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"wheel: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def tool(name: str, *arguments: str | Path) -> str:
    return run(sys.executable, "-m", name, *arguments)


def stage_files(build: Path, stage: Path, information: str) -> None:
    package = stage / "tensorbus"
    without = shutil.ignore_patterns("__pycache__", "_core*.so")
    shutil.copytree(ROOT / "python/tensorbus", package, ignore=without)
    installed = {
        "python": stage,
        "sdk": package / "sdk",
        "program": stage / information.replace(".dist-info", ".data"),
    }
    for component, prefix in installed.items():
        run("cmake", "--install", build, "--component", component, "--prefix", prefix)
    program = installed["program"]
    (program / "bin").rename(program / "scripts")


def notice_of(name: str) -> str:
    if name == "nanobind":
        files = importlib.metadata.files("nanobind") or []
        # Its map is another's, who says so at the top.
        texts = [file.read_text() for file in files if "licenses" in file.parts]
        maps = [file.read_text() for file in files if file.name == "robin_map.h"]
        return "\n".join(texts + [text.partition("*/")[0] + "*/" for text in maps])
    found = sorted(Path("/usr/share/doc").glob(f"{LINKED[name]}/copyright"))
    if not found:
        sys.exit(
            f"wheel: /usr/share/doc has no copyright file of {LINKED[name]}, which is linked in"
        )
    return found[-1].read_text()


def stage_notices(information: Path) -> None:
    """In licenses/others, named in the metadata; Apache's text, to which some refer, is ours."""
    folder = information / "licenses/others"
    folder.mkdir()
    metadata = information / "METADATA"
    named = "License-File: LICENSE\n"
    for name in sorted({*LINKED, "nanobind"}):
        (folder / name).write_text(notice_of(name))
        named += f"License-File: others/{name}\n"
    text = metadata.read_text()
    if "License-File: LICENSE\n" not in text:
        sys.exit("wheel: the metadata do not name LICENSE")
    metadata.write_text(text.replace("License-File: LICENSE\n", named, 1))


def python_tag(stage: Path) -> str:
    """Of the extension: cp311-cp311; cp312-abi3 serves that Python and all later ones."""
    (extension,) = (stage / "tensorbus").glob("_core*.so")
    if extension.name == "_core.abi3.so":
        return "cp312-abi3"
    version = re.search(r"cpython-(\d+)-", extension.name)
    assert version is not None, extension
    return f"cp{version[1]}-cp{version[1]}"


def say_tag(stage: Path, information: str, tag: str) -> None:
    text = f"Wheel-Version: 1.0\nGenerator: tensorbus\nRoot-Is-Purelib: false\nTag: {tag}\n"
    (stage / information / "WHEEL").write_text(text)


def pack(build: Path, stage: Path, output: Path, machine: str) -> Path:
    with contextlib.redirect_stdout(sys.stderr):  # it says what it does
        information = prepare_metadata_for_build_wheel(str(stage))
    stage_files(build, stage, information)
    stage_notices(stage / information)
    say_tag(stage, information, f"{python_tag(stage)}-linux_{machine}")
    tool("wheel", "pack", stage, "--dest-dir", output)
    (wheel,) = output.iterdir()
    return wheel


def platform_of(wheel: Path) -> str:
    told = re.sub(r"\s+", " ", tool("auditwheel", "show", wheel))
    found = re.search(r'platform tag: "(\w+)"', told)
    if found is None:
        sys.exit(f"wheel: auditwheel does not name a platform:\n{told}")
    return found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--machine", default=os.uname().machine, help="that it was built for")
    options = parser.parse_args()
    os.chdir(ROOT)
    options.output.mkdir(parents=True, exist_ok=True)
    # Equal builds give equal wheels.
    os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct").strip())
    with tempfile.TemporaryDirectory() as folder:
        stage, packed = Path(folder, "stage"), Path(folder, "packed")
        stage.mkdir()
        packed.mkdir()
        wheel = pack(options.build.resolve(), stage, packed, options.machine)
        tool("wheel", "tags", "--remove", "--platform-tag", platform_of(wheel), wheel)
        (wheel,) = packed.iterdir()
        print(shutil.copy(wheel, options.output))


if __name__ == "__main__":
    main()
