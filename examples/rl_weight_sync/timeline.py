"""The run as a picture: one lane per rank, a dot for every version that was sent or received."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

LANE = 44
LEFT, WIDTH, TOP = 110, 800, 66
RADIUS = 9
COLOURS = ("#4269d0", "#b07d10", "#d1495b", "#2a8f83", "#3a7d34", "#b5478f", "#7b4fc9", "#5b7fa6")
MARKS = {"killed": "#c00", "started": "#080"}
STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)  # between two figures of the axis, in seconds


def draw(lanes: Sequence[tuple[int, str]], events: Sequence[dict[str, Any]]) -> str:
    """SVG. `lanes` are ranks with their names; events have time, rank, event, version."""
    begin = min(event["time"] for event in events)
    length = max(event["time"] for event in events) - begin or 1.0
    rows = {rank: TOP + LANE * number for number, (rank, _) in enumerate(lanes)}
    bottom = TOP + LANE * len(lanes) - LANE // 2

    def x(seconds: float) -> float:
        return round(LEFT + WIDTH * seconds / length, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 50} {bottom + 46}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        *legend(),
        *axis(length, bottom, x),
    ]
    for rank, name in lanes:
        parts.append(f'<text x="10" y="{rows[rank] + 4}">{escape(name)}</text>')
        parts.append(f'<path d="M{LEFT} {rows[rank]}h{WIDTH}" stroke="#ccc"/>')
        own = [event for event in events if event["rank"] == rank]
        for event in own:
            if event["event"] in MARKS:
                parts.append(mark(x(event["time"] - begin), rows[rank], event["event"]))
        dots = [
            (x(event["time"] - begin), event["version"])
            for event in own
            if event["event"] in ("sent", "received")
        ]
        for true, shown, version in side_by_side(sorted(dots)):
            parts.extend(dot(true, shown, rows[rank], version))
    return "\n".join([*parts, "</svg>\n"])


def legend() -> Iterator[str]:
    """In the first line."""
    at = LEFT
    yield from dot(at, at, 22, 7)
    yield f'<text x="{at + 16}" y="26">version 7 was sent or received</text>'
    for number, name in enumerate(MARKS):
        at = LEFT + 240 + 100 * number
        yield mark(at, 22, name)
        yield f'<text x="{at + 8}" y="26">{name}</text>'


def axis(length: float, bottom: int, x: Any) -> Iterator[str]:
    step = next((each for each in STEPS if length / each <= 12), STEPS[-1])
    yield f'<path d="M{LEFT} {bottom}h{WIDTH}" stroke="#444"/>'
    for seconds in range(0, int(length) + 1, step):
        yield f'<path d="M{x(seconds)} {TOP - 20}V{bottom + 5}" stroke="#eee"/>'
        yield f'<text x="{x(seconds)}" y="{bottom + 19}" text-anchor="middle">{seconds}</text>'
    yield f'<text x="{LEFT + WIDTH / 2}" y="{bottom + 38}" text-anchor="middle">seconds</text>'


def side_by_side(dots: Sequence[tuple[float, int]]) -> Iterator[tuple[float, float, int]]:
    """Those that would hide each other are moved to the right: where, where to, which version."""
    free = float("-inf")
    for at, version in dots:
        shown = max(at, free)
        free = shown + 2 * RADIUS + 1
        yield at, shown, version


def dot(true: float, shown: float, y: int, version: int) -> list[str]:
    colour = COLOURS[version % len(COLOURS)]
    return [
        f'<path d="M{true} {y + RADIUS + 4}L{shown} {y}" stroke="{colour}"/>',
        f'<circle cx="{shown}" cy="{y}" r="{RADIUS}" fill="{colour}"/>',
        f'<text x="{shown}" y="{y + 4}" text-anchor="middle" fill="white" font-size="11">'
        f"{version}</text>",
    ]


def mark(at: float, y: int, name: str) -> str:
    return f'<path d="M{at} {y - 18}v36" stroke="{MARKS[name]}" stroke-width="3"/>'
