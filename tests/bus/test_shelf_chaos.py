"""Seeded kills while versions are published and pulled, on one host and between two."""

import random
from pathlib import Path

import pytest
from processes import Start
from shelf_chaos import DELTA_SHOTS, SHOTS, DeltaChaos, ShelfChaos, Shot
from under_fire import WHERE, fire_all, start_chaos


def bombard(where: str, start: Start, folder: Path, shots: list[Shot]) -> None:
    chaos = start_chaos(ShelfChaos, where, start, folder)
    fire_all(chaos, shots)
    assert len(chaos.record.pulls) > len(shots)


@WHERE
@pytest.mark.timeout(300)
@pytest.mark.proves("L1.5", "L1.7", "L1.13")
def test_whoever_is_killed_what_is_pulled_is_whole(
    where: str, start_program: Start, tmp_path: Path
) -> None:
    bombard(where, start_program, tmp_path, random.Random(1).sample(SHOTS, 7))


@WHERE
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_kills_of_publishers_and_readers(
    where: str, seed: int, start_program: Start, tmp_path: Path
) -> None:
    bombard(where, start_program, tmp_path, random.Random(seed).sample(SHOTS, len(SHOTS)))


def bombard_deltas(where: str, start: Start, folder: Path, shots: list[Shot]) -> None:
    chaos = start_chaos(DeltaChaos, where, start, folder)
    fire_all(chaos, shots)
    assert chaos.record.patched > len(shots)


@WHERE
@pytest.mark.timeout(300)
@pytest.mark.proves("E1.3", "E1.4", "E3.1")
def test_whoever_is_killed_what_is_patched_is_whole(
    where: str, start_program: Start, tmp_path: Path
) -> None:
    bombard_deltas(where, start_program, tmp_path, random.Random(1).sample(DELTA_SHOTS, 7))


@WHERE
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_kills_while_versions_are_patched(
    where: str, seed: int, start_program: Start, tmp_path: Path
) -> None:
    shots = random.Random(seed).sample(DELTA_SHOTS, len(DELTA_SHOTS))
    bombard_deltas(where, start_program, tmp_path, shots)
