"""What `make demo` runs."""

import os
import re
import signal
import statistics
import sys
from pathlib import Path

import pytest
from processes import Start, eventually, processes_with

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.timeout(180)
def test_the_demo_verifies_every_element_and_survives_a_kill(start_program: Start) -> None:
    demo = start_program(sys.executable, str(DEMO), "--pulls", "2")
    assert demo.wait(170) == 0, demo.errors
    lines = []
    while demo.has_line(0.0) and "was compared with" not in "".join(lines[-1:]):
        lines.append(demo.line())
    assert "every element of every pull was compared" in lines[-1], lines
    pulls = [line for line in lines if re.match(r" +[01] +\d+ +\d+ ", line)]
    (killed,) = [number for number, line in enumerate(pulls) if "then it was killed" in line]
    back = [int(line.split()[1]) for line in pulls[killed + 1 :] if line.split()[0] == "1"]
    assert len(back) >= 3, "two pulls, and the last version"
    assert back[0] > int(pulls[killed].split()[1]), "the trainers went on while it was dead"
    last = {line.split()[0]: int(line.split()[1]) for line in pulls}
    assert last["0"] == last["1"], "both end with the last version"
    check_speeds(lines, pulls)


def check_speeds(lines: list[str], pulls: list[str]) -> None:
    """What is said of the speed follows from the rows. How fast it is depends on who else computes
    here."""
    row = re.compile(r"(?: +\d+){3} +(?P<mb>\d+) +(?P<ms>[\d.]+) +(?P<gb>[\d.]+) +(?P<share>\d+)%")
    rows = [found for line in pulls if (found := row.match(line))]
    for each in rows:
        assert float(each["gb"]) == pytest.approx(int(each["mb"]) / float(each["ms"]), 0.05, 0.01)
    warm = [int(each["share"]) for each in rows if "not warm yet" not in each.string]
    text = "\n".join(lines)
    said = re.search(
        r"^a warm pull has (\d+)% of the speed of a plain copy: median of (\d+), each$", text, re.M
    )
    assert said is not None
    assert int(said[2]) == len(warm)
    assert int(said[1]) == pytest.approx(statistics.median(warm or [0]), abs=1), "rounded"
    took = re.search(r"^publish took ([\d.]+) ms \(most: ([\d.]+)\)$", text, re.M)
    assert took is not None
    assert 0 < float(took[1]) <= float(took[2])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_demo_that_is_interrupted(
    start_program: Start, tmp_path: Path, number: signal.Signals
) -> None:
    mark = f"INTERRUPTED={tmp_path}"
    demo = start_program(sys.executable, "-u", str(DEMO), env=dict([mark.split("=", 1)]))
    eventually(lambda: len(processes_with(mark)) == 5, "all processes to begin", timeout=60)
    os.kill(demo.pid, number)
    assert demo.wait(60) == (130 if number == signal.SIGINT else -number)
    eventually(lambda: processes_with(mark) == [], "all processes to end", timeout=40)
