"""Many seeds, and that they can fail: every mistake that is put into the protocol is found."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from mistakes import (
    FOUND_ELSEWHERE,
    MISTAKES,
    OF_DELTAS,
    OF_PULLS_TOGETHER,
    OF_RECORDS,
    OF_THE_SHELF,
    Mistake,
)
from two_at_a_time import two_at_a_time

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
SEEDS = 400
MANY_SEEDS = 100_000
SEEDS_WITH_A_MISTAKE = 5_000
ONCE_BROKEN = (6643, 27124, 58477, 66657)  # seeds that found what the hundreds did not
ALL_MISTAKES = (
    MISTAKES + FOUND_ELSEWHERE + OF_THE_SHELF + OF_DELTAS + OF_PULLS_TOGETHER + OF_RECORDS
)


def compile_edited(texts: dict[str, str], folder: Path) -> list[Path]:
    """Objects in which these source files have other contents.

    The build compiles several sources as one, which includes them: of those that include an edited
    one a copy is made that includes the edited text.
    """
    edited: dict[str, Path] = {}
    for source, text in texts.items():
        edited[str(ROOT / source)] = folder / Path(source).name
        edited[str(ROOT / source)].write_text(text)
    objects: list[Path] = []
    for command in json.loads((BUILD / "compile_commands.json").read_text()):
        united = Path(command["file"])
        if not united.is_relative_to(BUILD):
            continue
        included = [
            str(ROOT / name)
            for name in re.findall(r'^#include "(.*)"$', united.read_text(), re.MULTILINE)
        ]
        if not edited.keys() & included:
            continue
        copy = folder / f"united_{len(objects)}.cc"
        copy.write_text("".join(f'#include "{edited.get(each, each)}"\n' for each in included))
        objects.append(copy.with_suffix(".o"))
        words = shlex.split(command["command"])
        words[words.index("-o") + 1] = str(objects[-1])
        words[words.index("-c") + 1] = str(copy)
        subprocess.run(words, cwd=command["directory"], check=True)
    assert objects
    return objects


def link(objects: list[Path], folder: Path) -> Path:
    """The simulation, with these objects in place of the library's own."""
    told = subprocess.run(
        ["ninja", "-C", str(BUILD), "-t", "commands", "-s", "bin/simulate"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = next(each for each in told.splitlines() if " -o bin/simulate " in each)
    words = shlex.split(line.split("&&")[1] if line.startswith(":") else line)
    program = folder / "simulate"
    at = words.index("-o")
    words[at + 1] = str(program)
    subprocess.run([*words[:at], *map(str, objects), *words[at:]], cwd=BUILD, check=True)
    return program


def make(mistake: Mistake, folder: Path) -> Path:
    texts: dict[str, str] = {}
    for source, old, new in mistake.edits:
        text = texts.setdefault(source, (ROOT / source).read_text())
        assert text.count(old) == 1, f"{source} has changed: {old}"
        texts[source] = text.replace(old, new)
    return link(compile_edited(texts, folder), folder)


def build() -> None:
    subprocess.run(["cmake", "--build", str(BUILD), "--target", "simulate"], check=True)


def start(first: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BUILD / "bin" / "simulate", "--seed", str(first), "--count", str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def told_by(run: subprocess.Popen[str]) -> str:
    told, _ = run.communicate()
    assert run.returncode == 0, told[-4000:]
    return told


@pytest.mark.timeout(300)
def test_hundreds_of_seeds_break_nothing() -> None:
    build()
    told = told_by(start(1, SEEDS))
    assert int(re.search(r"^recvs: (\d+)", told, re.MULTILINE)[1]) > SEEDS  # type: ignore[index]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_a_seed_that_once_broke_an_invariant_breaks_none(seed: int) -> None:
    build()
    assert re.search(r"^pulls: \d", told_by(start(seed, 1)), re.MULTILINE)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_seeds_break_nothing_and_every_fault_hits_every_step() -> None:
    build()
    share = MANY_SEEDS // 2
    runs = [start(first, share) for first in (1, 1 + share)]
    try:
        for run in runs:
            assert not never(told_by(run)), "kinds of faults never hit agents after these steps"
    finally:
        for run in runs:
            run.kill()
            run.wait()


def never(told: str) -> list[tuple[str, str]]:
    """Which fault never hit an agent after which step, by the printed table."""
    faults = dict(re.findall(r"^ *(F\d+)  (.+)$", told, re.MULTILINE))
    table = told[told.index("\nafter ") + 1 :].splitlines()
    names = table[0].removeprefix("after").split()
    found = []
    for line in table[1:]:
        step, counts = line[:17].strip(), line[17:].split()
        for name, count in zip(names, counts, strict=True):
            if count == "0":
                found.append((faults[name], step))
    return found


def find(mistake: Mistake, folder: Path) -> subprocess.CompletedProcess[str]:
    program = make(mistake, folder)
    return subprocess.run(
        [program, "--count", str(SEEDS_WITH_A_MISTAKE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Mistake, Future[subprocess.CompletedProcess[str]]]]:
    build()
    with two_at_a_time(
        request.session,
        test_a_mistake_is_found.__name__,
        "mistake",
        lambda mistake: find(mistake, tmp_path_factory.mktemp("mistake")),
    ) as runs:
        yield runs


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mistake", ALL_MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found(
    mistake: Mistake, found: dict[Mistake, Future[subprocess.CompletedProcess[str]]]
) -> None:
    ended = found[mistake].result()
    broken = re.search(r"^seed \d+ broke ([DI]\d+)", ended.stdout, re.MULTILINE)
    assert broken is not None, f"{SEEDS_WITH_A_MISTAKE} seeds found nothing\n{ended.stderr[-2000:]}"
    assert broken[1] in mistake.broken, ended.stdout[-2000:]


def test_the_protocols_page_lists_every_mistake() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE))
    assert all(mistake.name in rows for mistake in MISTAKES)
    for mistake in ALL_MISTAKES[len(MISTAKES) :]:
        assert set(rows[mistake.name].split(", ")) == set(mistake.broken), mistake.name


def test_every_edit_fits_the_sources() -> None:
    assert len(MISTAKES) == 8
    for mistake in ALL_MISTAKES:
        for source, old, _ in mistake.edits:
            assert (ROOT / source).read_text().count(old) == 1, f"{mistake.name}: {source}"
