"""Seeded kills while versions are published and pulled, on one host and between two."""

import os
import random
from pathlib import Path

import pytest
from processes import Start
from shelf_chaos import SHOTS, ShelfChaos, Shot
from two_hosts import TwoHosts

WHERE = pytest.mark.parametrize("where", ["one host", "two hosts"])


def start_chaos(where: str, start: Start, folder: Path) -> ShelfChaos:
    if where == "one host":
        return ShelfChaos(start, folder, None)
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    return ShelfChaos(start, folder, TwoHosts(start))


def bombard(chaos: ShelfChaos, shots: list[Shot]) -> None:
    for number, shot in enumerate(shots):
        try:
            chaos.fire(shot)
        except BaseException as error:
            error.add_note(f"after {shots[:number]}, at {shot}")
            raise
    assert len(chaos.record.pulls) > len(shots)


@WHERE
@pytest.mark.timeout(300)
@pytest.mark.proves("L1.5", "L1.7", "L1.13")
def test_whoever_is_killed_what_is_pulled_is_whole(
    where: str, start_program: Start, tmp_path: Path
) -> None:
    shots = random.Random(1).sample(SHOTS, 7)
    bombard(start_chaos(where, start_program, tmp_path), shots)


@WHERE
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_kills_of_publishers_and_readers(
    where: str, seed: int, start_program: Start, tmp_path: Path
) -> None:
    bombard(
        start_chaos(where, start_program, tmp_path), random.Random(seed).sample(SHOTS, len(SHOTS))
    )
