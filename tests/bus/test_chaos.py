"""Seeded kills of workers, agents and the store at named steps, on one host and between two."""

import random
from pathlib import Path

import pytest
from chaos import SHOTS, VICTIMS, Chaos, Shot
from processes import Start
from under_fire import WHERE, fire_all, start_chaos


def shots_of(seed: int, kills: int) -> list[Shot]:
    """So many kills, of everybody in turn, and as many agents that stand still as fit in."""
    dice = random.Random(seed)
    shots = dice.sample(SHOTS, len(SHOTS))
    chosen: list[Shot] = []
    for victim in VICTIMS:
        chosen += [shot for shot in shots if shot.victim == victim][: kills // 5]
    return dice.sample(chosen, len(chosen))


def bombard(where: str, start: Start, folder: Path, shots: list[Shot]) -> None:
    chaos = start_chaos(Chaos, where, start, folder)
    fire_all(chaos, shots)
    chaos.check_descriptors()


@WHERE
@pytest.mark.timeout(240)
@pytest.mark.proves("B3.8", "B3.16", "B3.17", "B5.2", "B5.13", "B5.18")
def test_whoever_is_killed_the_others_are_told_and_go_on(
    where: str, start_program: Start, tmp_path: Path
) -> None:
    bombard(where, start_program, tmp_path, shots_of(1, 10))


@WHERE
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(10, 15))
def test_hundreds_of_kills(where: str, seed: int, start_program: Start, tmp_path: Path) -> None:
    bombard(where, start_program, tmp_path, shots_of(seed, 50))
