"""examples/rl_weight_sync, as its README says."""

import re
import sys
from pathlib import Path

import pytest
from processes import Start

RUN = Path(__file__).parents[2] / "examples" / "rl_weight_sync" / "run.py"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_trainers_learn_and_engines_generate_through_a_kill(start_program: Start, tmp_path: Path):
    picture = tmp_path / "timeline.svg"
    example = start_program(sys.executable, "-u", str(RUN), "--picture", str(picture))
    assert example.wait(380) == 0, example.errors
    lines = []
    while example.has_line(0.0) and "the loss fell" not in "".join(lines[-1:]):
        lines.append(example.line())
    text = "\n".join(lines)
    assert "solo  killed" in text
    after = text[text.index("solo  killed") :]
    received = [int(v) for v in re.findall(r"solo  received  version=(\d+)", after)]
    assert len(received) >= 3, after
    assert received == sorted(set(received))
    assert re.search(r"duo 1  generated version=\d+", text)
    first, last = re.search(r"the loss fell from ([0-9.]+) to ([0-9.]+)", lines[-1]).groups()
    assert float(last) < 0.5 * float(first)
    drawn = picture.read_text()
    assert drawn.count("<circle") >= 3 * len(set(received))
    assert "killed" in drawn
