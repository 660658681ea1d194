"""tools/check_wheel.py: one bad wheel for each rule, all else in it being right."""

import importlib.util
import os
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = "tensorbus-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"
EXTENSION = "tensorbus/_core.cpython-311-x86_64-linux-gnu.so"
PROGRAM = "tensorbus-0.1.0.data/scripts/tensorbus"
ARCHIVE = "tensorbus/sdk/lib/libtensorbus.a"
HEADER = "tensorbus/sdk/include/tensorbus/bus.h"
LICENCE = "tensorbus-0.1.0.dist-info/licenses/LICENSE"
NOTICES = "tensorbus-0.1.0.dist-info/licenses/others"
LINKED = [
    *("cli11", "cpp-httplib", "fmt", "highway", "libstdc++", "lmdb", "nanobind", "nlohmann-json"),
    *("openssl", "xxhash"),
]
ENTRY = "void PyInit__core(void) {}"
MAIN = "int main(void) { return 0; }"
PUBLIC = "void _ZN9tensorbus3Bus4stopEv(void) {}"  # tensorbus::Bus::stop()


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_wheel", ROOT / "tools/check_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(folder: Path, source: str, *options: str) -> bytes:
    file = folder / "source.c"
    file.write_text(source)
    made = folder / "made"
    subprocess.run(["gcc", "-w", *options, file, "-o", made], check=True, timeout=60)
    return made.read_bytes()


def shared(folder: Path, source: str, *options: str) -> bytes:
    return compiled(folder, source, "-shared", "-fPIC", *(options or ("-s",)))


def archive(folder: Path, source: str) -> bytes:
    (folder / "object.o").write_bytes(compiled(folder, source, "-c"))
    made = folder / "archive.a"
    subprocess.run(["ar", "qcsD", made, folder / "object.o"], check=True, timeout=60)
    return made.read_bytes()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The least that a wheel may hold."""
    folder = tmp_path_factory.mktemp("good")
    return {
        "tensorbus/__init__.py": b"",
        "tensorbus/_core.pyi": b"",
        "tensorbus/py.typed": b"",
        HEADER: b"namespace tensorbus { class Bus; }",
        "tensorbus/sdk/lib/cmake/tensorbus/tensorbus-config.cmake": b"",
        LICENCE: b"",
        **{f"{NOTICES}/{name}": b"Copyright" for name in LINKED},
        EXTENSION: shared(folder, ENTRY),
        PROGRAM: compiled(folder, MAIN, "-s"),
        ARCHIVE: archive(folder, PUBLIC),
    }


def faults(check: ModuleType, folder: Path, files: dict[str, bytes], name: str = NAME) -> list[str]:
    wheel = folder / name
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return list(check.faults_of(wheel))


def test_a_wheel_of_which_all_is_right_passes(check, good, tmp_path):
    assert faults(check, tmp_path, good) == []


def test_an_extension_exports_its_entry_alone(check, good, tmp_path):
    files = good | {EXTENSION: shared(tmp_path, ENTRY + "void leaked(void) {}")}
    assert faults(check, tmp_path, files) == [f"{EXTENSION}: it exports ['leaked']"]
    files = good | {EXTENSION: shared(tmp_path, "static int nothing;")}
    assert faults(check, tmp_path, files) == [f"{EXTENSION}: it exports nothing"]


def test_a_program_exports_nothing(check, good, tmp_path):
    exporting = compiled(tmp_path, MAIN + "int leaked;", "-s", "-Wl,--export-dynamic-symbol=leaked")
    assert faults(check, tmp_path, good | {PROGRAM: exporting}) == [
        f"{PROGRAM}: it exports ['leaked']"
    ]


@pytest.mark.parametrize(
    ("headers", "symbol", "is_public"),
    [
        ("namespace tensorbus { void stop(); }", "_ZN9tensorbus4stopEv", True),
        ("namespace tensorbus { // stop\n}", "_ZN9tensorbus4stopEv", False),
        ("namespace tensorbus { /* to\nstop */ }", "_ZN9tensorbus4stopEv", False),
        ('namespace tensorbus { auto x = "stop"; }', "_ZN9tensorbus4stopEv", False),
        ('namespace tensorbus { f("http://x"); void stop(); }', "_ZN9tensorbus4stopEv", True),
        # A word, but no namespace.
        ("namespace tensorbus { void stop(int bus); }", "_ZN9tensorbus3bus4stopEv", False),
        ("namespace tensorbus::bus { void stop(); }", "_ZN9tensorbus3bus4stopEv", True),
        ("namespace tensorbus { class Bus; }", "_ZNK9tensorbus3Bus4stopEv", True),
        # A static variable and the type of a lambda of Bus::stop().
        ("namespace tensorbus { class Bus; }", "_ZZN9tensorbus3Bus4stopEvE4once", True),
        ("namespace tensorbus { class Bus; }", "_ZTIZN9tensorbus3Bus4stopEvEUlvE_", True),
        ("namespace tensorbus { class Bus; }", "_ZZN9tensorbus6Secret4stopEvE4once", False),
    ],
)
def test_public_is_what_the_code_of_headers_declares(headers, symbol, is_public, check):
    assert check.is_public(symbol, check.declared_in(headers)) == is_public


def test_a_shared_object_exports_what_its_headers_name(check, tmp_path):
    declared = check.declared_in("namespace tensorbus { class Bus; }")
    made = tmp_path / "libtensorbus.so"
    made.write_bytes(shared(tmp_path, PUBLIC))
    assert list(check.faults_of_shared_object(made, declared)) == []
    made.write_bytes(shared(tmp_path, PUBLIC + "void leaked(void) {}"))
    assert list(check.faults_of_shared_object(made, declared)) == ["it exports ['leaked']"]


@pytest.mark.parametrize(
    "symbol",
    [
        "fmt_leaked",
        "_ZN3fmt2v96vprintEv",  # fmt::v9::vprint()
        "_ZN9tensorbus3bus5Agent4stopEv",  # tensorbus::bus::Agent::stop(): in no public header
        "_ZTIN9tensorbus6SecretE",  # typeinfo for tensorbus::Secret
    ],
)
def test_an_archive_exports_what_its_headers_name(symbol, check, good, tmp_path):
    files = good | {ARCHIVE: archive(tmp_path, PUBLIC + f"void {symbol}(void) {{}}")}
    assert faults(check, tmp_path, files) == [f"{ARCHIVE}: it exports ['{symbol}']"]


def test_an_archive_without_symbols_is_none(check, good, tmp_path):
    files = good | {ARCHIVE: archive(tmp_path, "static int nothing;")}
    assert faults(check, tmp_path, files) == [f"{ARCHIVE}: it exports nothing"]


def test_symbols_of_a_newer_glibc_are_not_asked_for(check, good, tmp_path):
    source = "unsigned arc4random(void);" + MAIN.replace("0", "(int)arc4random()")
    files = good | {PROGRAM: compiled(tmp_path, source, "-s")}
    assert faults(check, tmp_path, files) == [f"{PROGRAM}: it needs glibc 2.36"]


def test_libraries_of_others_are_not_asked_for(check, good, tmp_path):
    needing = compiled(tmp_path, MAIN, "-s", "-Wl,--no-as-needed", "-lucp", "-Wl,--as-needed")
    files = good | {PROGRAM: needing}
    assert faults(check, tmp_path, files) == [f"{PROGRAM}: it needs libucp.so.0"]


def test_no_folder_for_libraries_is_named(check, good, tmp_path):
    files = good | {EXTENSION: shared(tmp_path, ENTRY, "-s", "-Wl,-rpath,/opt")}
    assert faults(check, tmp_path, files) == [f"{EXTENSION}: it has a path for libraries"]


def test_what_runs_is_stripped(check, good, tmp_path):
    files = good | {EXTENSION: shared(tmp_path, ENTRY, "-g0")}
    assert faults(check, tmp_path, files) == [f"{EXTENSION}: it is not stripped"]


def test_a_wheel_is_small(check, good, tmp_path):
    (found,) = faults(check, tmp_path, good | {"tensorbus/big": os.urandom(12_000_000)})
    assert found.startswith("it has 12")
    assert found.endswith(" bytes, more than 12000000")


@pytest.mark.parametrize("platform", ["linux_x86_64", "manylinux_2_35_x86_64"])
def test_a_wheel_says_that_it_runs_anywhere(platform, check, good, tmp_path):
    name = NAME.replace("manylinux_2_34_x86_64", platform)
    assert faults(check, tmp_path, good, name) == ["its platform is not manylinux_2_34"]


def test_what_is_missing_is_named(check, good, tmp_path):
    files = {name: content for name, content in good.items() if name != LICENCE}
    assert faults(check, tmp_path, files) == ["there is no tensorbus-*.dist-info/licenses/LICENSE"]


@pytest.mark.parametrize("name", LINKED)
def test_what_is_linked_in_is_named_with_its_licence(name, check, good, tmp_path):
    expected = [f"there is no notice of {name}, which is linked in"]
    files = {path: content for path, content in good.items() if path != f"{NOTICES}/{name}"}
    assert faults(check, tmp_path, files) == expected
    assert faults(check, tmp_path, good | {f"{NOTICES}/{name}": b""}) == expected


def test_what_does_not_belong_in_it_is_named(check, good, tmp_path):
    name = "tensorbus/__pycache__/x.pyc"
    assert faults(check, tmp_path, good | {name: b""}) == [f"{name} has no place in it"]


def test_no_folder_of_this_machine_is_named(check, good, tmp_path):
    files = good | {"tensorbus/where.txt": f"built in {ROOT}/build".encode()}
    # A clone may lie in the home folder, which is looked for as well.
    named = {f"tensorbus/where.txt: it names {ROOT}/"}
    inside = {f"tensorbus/where.txt: it names {folder}/" for folder in ROOT.parents}
    found = faults(check, tmp_path, files)
    assert named <= set(found) <= named | inside
