"""Checks that wheels run anywhere: `tools/check_wheel.py dist/*.whl`. Says what is wrong with them.

Nothing but the C library is asked of a system, in a version that all supported ones have; no folder
of the machine that built it is named; the extension exports its entry alone, the program nothing,
the archive for C++ what its headers name; the notices of what is linked in are there; it is small.
"""

import io
import re
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 12_000_000
NEWEST_GLIBC = (2, 34)  # that of UBI 9; Ubuntu 22.04 and Debian 12 have newer ones
# libgcc_s: every system has it, libc needs it to end threads.
SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt)\.so\.\d|libgcc_s\.so\.1|ld-linux-.*")
WANTED = [
    "tensorbus/__init__.py",
    "tensorbus/_core.pyi",
    "tensorbus/py.typed",
    "tensorbus/sdk/include/tensorbus/bus.h",
    "tensorbus/sdk/lib/libtensorbus.a",
    "tensorbus/sdk/lib/cmake/tensorbus/tensorbus-config.cmake",
    "tensorbus-*.data/scripts/tensorbus",
    "tensorbus-*.dist-info/licenses/LICENSE",
]
# What others wrote and is linked in.
LINKED = [
    *("cli11", "cpp-httplib", "fmt", "highway", "libstdc++", "lmdb", "nanobind", "nlohmann-json"),
    *("openssl", "xxhash"),
]
EXTENSION = re.compile(r"tensorbus/_core\..*so")
PROGRAM = re.compile(r"tensorbus-[^/]+\.data/scripts/tensorbus")
HEADERS = "tensorbus/sdk/include/tensorbus/*.h"
# A text first of all: its slashes begin no comment.
NOT_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
STRANGE = re.compile(r"\.pyc$|__pycache__|_test\.|\.o$|/testing/")


def own_folders() -> set[bytes]:
    """Of this machine, that no wheel may name."""
    prefix = sysconfig.get_config_var("prefix")
    folders = {ROOT, Path.home()}
    if prefix not in ("/usr", "/usr/local"):
        folders.add(Path(prefix))
    return {f"{folder}/".encode() for folder in folders}


def sections(elf: ELFFile, kind: type) -> list[object]:
    return [section for section in elf.iter_sections() if isinstance(section, kind)]


def wrong_needs(elf: ELFFile) -> Iterator[str]:
    for section in sections(elf, DynamicSection):
        for tag in section.iter_tags():
            if tag.entry.d_tag == "DT_NEEDED" and not SYSTEM.fullmatch(tag.needed):
                yield f"it needs {tag.needed}"
            if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                yield "it has a path for libraries"


def glibc_versions(elf: ELFFile) -> set[tuple[int, ...]]:
    names = [
        version.name
        for section in sections(elf, GNUVerNeedSection)
        for _, versions in section.iter_versions()
        for version in versions
    ]
    matches = [re.fullmatch(r"GLIBC_([\d.]+)", name) for name in names]
    return {tuple(int(part) for part in match[1].split(".")) for match in matches if match}


def exported(elf: ELFFile) -> set[str]:
    table = elf.get_section_by_name(".dynsym")
    return {
        symbol.name
        for symbol in (table.iter_symbols() if table else ())
        if symbol.entry.st_shndx != "SHN_UNDEF" and symbol.entry.st_info.bind != "STB_LOCAL"
    }


def faults_of_binary(name: str, elf: ELFFile) -> Iterator[str]:
    yield from wrong_needs(elf)
    newest = max(glibc_versions(elf), default=(0,))
    if newest > NEWEST_GLIBC:
        yield f"it needs glibc {'.'.join(map(str, newest))}"
    allowed = {"PyInit__core"} if EXTENSION.fullmatch(name) else set()
    if exported(elf) != allowed and (EXTENSION.fullmatch(name) or PROGRAM.fullmatch(name)):
        yield f"it exports {sorted(exported(elf) - allowed)[:5] or 'nothing'}"
    if elf.get_section_by_name(".symtab") is not None:
        yield "it is not stripped"


def objects(archive: bytes) -> Iterator[ELFFile]:
    """Of an archive of `ar`: a header of 60 bytes before each member, at even places."""
    place = 8
    while place < len(archive):
        size = int(archive[place + 48 : place + 58])
        content = archive[place + 60 : place + 60 + size]
        if content.startswith(b"\x7fELF"):
            yield ELFFile(io.BytesIO(content))
        place += 60 + size + size % 2


def linkable(elf: ELFFile) -> set[str]:
    """What programs that link an object can name; local symbols come first in the table."""
    table = elf.get_section_by_name(".symtab")
    first, end = (table.header.sh_info, table.num_symbols()) if table else (0, 0)
    symbols = [table.get_symbol(number) for number in range(first, end)]
    return {symbol.name for symbol in symbols if symbol.entry.st_shndx != "SHN_UNDEF"}


class Declared(NamedTuple):
    """By public headers."""

    namespaces: set[str]
    words: set[str]


def declared_in(headers: str) -> Declared:
    """Comments and texts declare nothing."""
    code = NOT_CODE.sub(" ", headers)
    opened = re.findall(r"\bnamespace\s+([\w:]+)\s*\{", code)
    namespaces = {name for path in opened for name in path.split("::")}
    return Declared(namespaces, set(re.findall(r"\w+", code)))


def is_public(symbol: str, declared: Declared) -> bool:
    """Public headers open its namespaces and name its class or function; a member is as visible as
    its class, and what a function has inside as the function."""
    mangled = re.match(r"_Z(?:T[ISV]|GV)?Z*N[VK]*(?=9tensorbus)", symbol)
    place = mangled.end() if mangled else len(symbol)
    words = []
    while length := re.match(r"\d+", symbol[place:]):
        place += length.end() + int(length[0])
        words.append(symbol[place - int(length[0]) : place])
        if words[-1][0].isupper():
            break
    return (
        len(words) > 1
        and words[-1] in declared.words
        and declared.namespaces.issuperset(words[:-1])
    )


def faults_of_library(symbols: set[str], declared: Declared) -> Iterator[str]:
    strange = sorted(symbol for symbol in symbols if not is_public(symbol, declared))
    if strange or not symbols:
        yield f"it exports {strange[:5] or 'nothing'}"


def faults_of_archive(content: bytes, declared: Declared) -> Iterator[str]:
    symbols = {symbol for elf in objects(content) for symbol in linkable(elf)}
    yield from faults_of_library(symbols, declared)


def faults_of_shared_object(path: Path, declared: Declared) -> Iterator[str]:
    """Of the library for C++ that `pip install .` makes."""
    with path.open("rb") as file:
        yield from faults_of_library(exported(ELFFile(file)), declared)


def faults_of_file(name: str, path: Path, declared: Declared) -> Iterator[str]:
    content = path.read_bytes()
    for folder in own_folders():
        if folder in content:
            yield f"it names {folder.decode()}"
    if content.startswith(b"\x7fELF"):
        with path.open("rb") as file:
            yield from faults_of_binary(name, ELFFile(file))
    if content.startswith(b"!<arch>\n"):
        yield from faults_of_archive(content, declared)


def missing_notices(folder: Path) -> Iterator[str]:
    for name in LINKED:
        found = list(folder.glob(f"tensorbus-*.dist-info/licenses/others/{name}"))
        if not found or "copyright" not in found[0].read_text().lower():
            yield f"there is no notice of {name}, which is linked in"


def faults_of(wheel: Path) -> Iterator[str]:
    if wheel.stat().st_size > MOST_BYTES:
        yield f"it has {wheel.stat().st_size} bytes, more than {MOST_BYTES}"
    if "-manylinux_2_34_" not in wheel.name:
        yield "its platform is not manylinux_2_34"
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        for pattern in WANTED:
            if not any(Path(folder).glob(pattern)):
                yield f"there is no {pattern}"
        yield from missing_notices(Path(folder))
        headers = "".join(header.read_text() for header in Path(folder).glob(HEADERS))
        declared = declared_in(headers)
        for name in archive.namelist():
            if STRANGE.search(name):
                yield f"{name} has no place in it"
            for fault in faults_of_file(name, Path(folder, name), declared):
                yield f"{name}: {fault}"


def main() -> None:
    faults = [f"{wheel}: {fault}" for wheel in sys.argv[1:] for fault in faults_of(Path(wheel))]
    print("\n".join(faults) or f"wheel: {len(sys.argv) - 1} checked, nothing is wrong")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
