"""What `make demo` runs."""

import sys
from pathlib import Path

import pytest
from processes import Start

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.timeout(180)
def test_the_demo_verifies_every_element_and_survives_a_kill(start_program: Start) -> None:
    demo = start_program(sys.executable, str(DEMO), "--rounds", "2")
    assert demo.wait(170) == 0, demo.errors
    lines = []
    while demo.has_line(0.0):
        lines.append(demo.line())
        if "compared with" in lines[-1]:
            break
    assert "every element of every round was compared" in lines[-1], lines
    killed_in, after = [line for line in lines if "elements right" in line]
    assert "2 read, 3 lost; " in killed_in
    assert "read by all; " in after
