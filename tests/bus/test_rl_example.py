"""examples/rl_weight_sync, as its README says."""

import re
import sys
from pathlib import Path

import pytest
from processes import Start

RUN = Path(__file__).parents[2] / "examples" / "rl_weight_sync" / "run.py"


def numbers(pattern: str, drawn: str) -> list[tuple[float, ...]]:
    return [tuple(map(float, found)) for found in re.findall(pattern, drawn)]


def test_the_picture_has_an_axis_and_a_legend_and_hides_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(RUN.parent))
    from timeline import draw

    close = [{"time": 7.0 + n / 10, "rank": 3, "event": "sent", "version": n} for n in range(12)]
    others = [
        {"time": 5.0, "rank": 4, "event": "killed"},
        {"time": 5.1, "rank": 4, "event": "started"},
        {"time": 41.0, "rank": 4, "event": "received", "version": 11},
        {"time": 43.0, "rank": 4, "event": "generated", "version": 11},
    ]
    drawn = draw([(3, "one <side>"), (4, "other")], close + others)
    dots = numbers(r'<circle cx="([0-9.]+)" cy="([0-9.]+)" r="9"', drawn)
    assert len(dots) == 1 + 13, "one of them in the legend"
    for number, (x, y) in enumerate(dots):
        for other_x, other_y in dots[:number]:
            assert abs(x - other_x) >= 18 or abs(y - other_y) >= 18
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert {"killed", "started", "version 7 was sent or received", "one &lt;side&gt;"} <= set(texts)
    assert {"0", "5", "10", "35", "seconds"} <= set(texts)
    places = numbers(r'<text x="([0-9.]+)" y="([0-9.]+)"', drawn)
    assert len(set(places)) == len(places)


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
    assert drawn.count('stroke="#c00"') == 2, "one of them in the legend"
