"""`tensorbus doctor --gpu`: what it says of a driver, and that nothing is loaded without it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping

import pytest
from processes import PROGRAM


def doctor(*arguments: str, env: Mapping[str, str]) -> tuple[int, dict[str, dict[str, str]]]:
    done = subprocess.run(
        [PROGRAM, "doctor", "--json", *arguments],
        capture_output=True, text=True, timeout=60, env=os.environ | dict(env), check=False,
    )  # fmt: skip
    rows = json.loads(done.stdout)
    return done.returncode, {row["name"]: row for row in rows if row["section"] == "devices"}


def test_devices_that_do_as_they_should_are_fine_and_a_stand_in_is_called_one(
    standin: Mapping[str, str],
):
    code, rows = doctor("--gpu", env=standin)
    assert code == 0, rows
    assert rows["cuda:0"]["state"] == "note"
    assert "stand-in" in rows["cuda:0"]["advice"]
    for check in ("pinned memory", "bytes to and fro", "strides", "order after a stream"):
        assert rows[f"cuda:1 {check}"]["state"] == "ok"


@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
def test_what_does_not_work_is_a_problem(standin: Mapping[str, str]):
    code, rows = doctor("--gpu", env={**standin, "STANDIN_FAIL": "cuMemcpy2DAsync:1:1"})
    assert code == 1
    assert any(row["state"] == "problem" for row in rows.values())


def test_a_machine_without_a_driver_is_told_why():
    code, rows = doctor("--gpu", env={})
    assert code == 1
    assert "libcuda.so.1 cannot be loaded" in rows["driver"]["value"]


@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
def test_without_the_option_no_device_is_looked_at(standin: Mapping[str, str]):
    assert doctor(env=standin) == (0, {})
