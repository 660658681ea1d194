"""examples/rl_weight_sync, as its README says."""

import itertools
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import Start, eventually, processes_with

RUN = Path(__file__).parents[2] / "examples" / "rl_weight_sync" / "run.py"
LETTER_WIDTH = 0.6  # of the size of a letter, on average

Box = tuple[float, float, float, float]


def boxes_of_texts(drawn: str) -> list[tuple[str, Box]]:
    """Each text of a picture with left, top, right, bottom."""
    found = []
    for attributes, text in re.findall(r"<text ([^>]*)>([^<]*)</text>", drawn):
        value = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        size = float(value.get("font-size", 12))
        width = LETTER_WIDTH * size * len(text)
        x, y = float(value["x"]), float(value["y"])
        left = x - width / 2 if value.get("text-anchor") == "middle" else x
        found.append((text, (left, y - 0.75 * size, left + width, y)))
    return found


def assert_no_text_overprints_another(drawn: str) -> None:
    for (text, a), (other, b) in itertools.combinations(boxes_of_texts(drawn), 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, f"{text!r} {a} and {other!r} {b}"


def step(begin: float, version: int, lane: str = "one <rank>") -> list[dict[str, Any]]:
    both = {"lane": lane, "version": version}
    return [
        {"event": "step", "begin": begin, "end": begin + 0.3, **both},
        {"event": "publish", "begin": begin + 0.3, "end": begin + 0.31, **both},
    ]


def serving(begin: float, version: int, lane: str = "other") -> list[dict[str, Any]]:
    both = {"lane": lane, "version": version}
    return [
        {"event": "pull", "begin": begin, "end": begin + 0.01, "ready": True, **both},
        {"event": "generate", "begin": begin + 0.01, "end": begin + 0.2, **both},
    ]


def test_the_picture_has_an_axis_and_a_legend_and_hides_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(RUN.parent))
    from timeline import draw

    events = [event for n in range(1, 121) for event in step(100 + n / 3, n)]
    events += [event for n in range(1, 60) for event in serving(100 + n / 2, n)]
    events += [event for n in range(60, 64) for event in serving(130 + n / 100, n)]
    events += [
        {"event": "killed", "lane": "other", "end": 131.0},
        {"event": "started", "lane": "other", "end": 131.1},
        *serving(138.0, 110),
    ]
    drawn = draw(["one <rank>", "other"], events)
    assert_no_text_overprints_another(drawn)
    texts = [text for text, _ in boxes_of_texts(drawn)]
    assert {"one &lt;rank&gt;", "training step, then publish", "killed", "started"} <= set(texts)
    assert {"0", "5", "35", "seconds since the first training step"} <= set(texts)
    assert drawn.count("<title>publish, version") == 120, "all have a mark, some a figure too"
    assert drawn.count("<title>pull, version") == 64
    assert {"1", "59", "110"} <= set(re.findall(r'class="version">(\d+)<', drawn))


def run_the_example(start_program: Start, folder: Path, *options: str) -> tuple[list[str], str]:
    """The lines that it printed, and the picture that it drew."""
    picture = folder / "timeline.svg"
    example = start_program(sys.executable, "-u", str(RUN), "--picture", str(picture), *options)
    assert example.wait(380) == 0, example.errors
    lines = []
    while example.has_line(0.0) and "the timeline is in" not in "".join(lines[-1:]):
        lines.append(example.line())
    return lines, picture.read_text()


def assert_it_did_what_its_readme_says(lines: list[str], drawn: str) -> None:
    text = "\n".join(lines)
    after = text[re.search(r"solo +killed", text).start() :]
    versions = [int(found) for found in re.findall(r"solo +(?:first pull: )?version (\d+)", after)]
    assert len(versions) >= 3
    assert versions == sorted(versions)
    assert versions[0] > 3, "the trainers went on while it was dead"
    assert re.search(r"late +first pull: version \d+", text)
    said = re.findall(r'duo 0 +version \d+, \d+ behind: "([^"]*)"', text)
    assert len(set(said)) >= 2, "what is generated changes with the versions"
    first, last = re.search(r"the loss fell from ([0-9.]+) to ([0-9.]+)", text).groups()
    assert float(last) < 0.5 * float(first)
    rows = re.findall(r"^(duo 0|duo 1|slow|late|solo) +(\d+) +(\d+) ", text, re.MULTILINE)
    assert len({newest for _, _, newest in rows}) == 1, "all have the last version in the end"
    assert len(rows) == 5
    assert "every byte of every pulled version was" in text
    assert_no_text_overprints_another(drawn)
    assert drawn.count("<title>generate, version") >= 10


@pytest.mark.timeout(200)
def test_engines_pull_while_the_trainers_go_on(start_program: Start, tmp_path: Path):
    lines, drawn = run_the_example(start_program, tmp_path, "--versions=8", "--letters=8")
    assert_it_did_what_its_readme_says(lines, drawn)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_trainers_learn_a_poem_and_engines_say_it(start_program: Start, tmp_path: Path):
    lines, drawn = run_the_example(start_program, tmp_path, "--versions=60")
    assert_it_did_what_its_readme_says(lines, drawn)
    last = [line for line in lines if re.search(r"duo 0 +version", line)][-1]
    assert re.search(r'"the (rain it raineth|just|unjust)', last), last


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("number", "when"),
    [(signal.SIGINT, "first pull"), (signal.SIGTERM, "duo 1"), (signal.SIGKILL, "duo 1")],
)
def test_nothing_outlives_a_run_that_is_interrupted(
    start_program: Start,
    tmp_path_factory: pytest.TempPathFactory,
    number: signal.Signals,
    when: str,
):
    folder = tmp_path_factory.mktemp("run")  # who is killed cannot clean up its files
    mark = f"INTERRUPTED={folder}"
    picture = folder / "timeline.svg"
    example = start_program(
        sys.executable, "-u", str(RUN), "--picture", str(picture),
        env=dict([mark.split("=", 1)]) | {"TMPDIR": str(folder)},
    )  # fmt: skip
    while when not in example.line(100):
        pass
    assert len(processes_with(mark)) > 5
    os.kill(example.pid, number)
    assert example.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
    eventually(lambda: processes_with(mark) == [], "all processes to end", timeout=40)
    assert not picture.exists()
