"""The run as a picture: a lane per rank, bars for what takes time, coloured by version."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

Event = dict[str, Any]

LEFT, RIGHT, TOP, LANE = 84, 30, 96, 50
NARROWEST, WIDEST = 1000, 2200
BAR = 14  # height
FONT, SMALL = 12, 10  # sizes of letters
LABEL_LEVELS = (10, 20)  # above a bar
STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)  # between two figures of the axis, in seconds
# From the first version to the last.
COLOURS = ((59, 47, 143), (31, 119, 180), (42, 157, 143), (233, 196, 106), (214, 87, 60))
KILLED, STARTED, DARK, PALE = "#c1121f", "#2b7a0b", "#222", "#bbb"


def text_width(text: str, size: int) -> float:
    """Of a common sans-serif font, rather too much than too little."""
    return 0.62 * size * len(text)


class Picture:
    """Places of events on the paper."""

    def __init__(self, lanes: Sequence[str], events: Sequence[Event]) -> None:
        self.lanes = lanes
        steps = [event["begin"] for event in events if event["event"] == "step"]
        self.begin = min(steps)
        shown = [event for event in events if event["lane"] in lanes and event["event"] != "ended"]
        self.events = [event for event in shown if event["end"] >= self.begin]
        self.length = max(event["end"] for event in self.events) - self.begin or 1.0
        self.last = max(event.get("version", 1) for event in self.events)
        self.width = self._width()
        self.bottom = TOP + LANE * len(lanes)

    def _width(self) -> float:
        """So wide that one label fits between most pulls."""
        gaps = []
        for lane in self.lanes:
            pulls = sorted(e["end"] for e in self.events if is_pull(e) and e["lane"] == lane)
            gaps += [later - earlier for earlier, later in itertools.pairwise(pulls)]
        gap = sorted(gaps)[len(gaps) // 10] if gaps else self.length
        needed = text_width("000", SMALL) * self.length / max(gap, 1e-3)
        return round(min(max(needed, NARROWEST), WIDEST))

    def x(self, when: float) -> float:
        share = max(0.0, when - self.begin) / self.length
        return round(LEFT + self.width * share, 1)

    def y(self, lane: str) -> int:
        """The middle of its bars."""
        return TOP + LANE * self.lanes.index(lane) + LANE // 2

    def colour(self, version: int) -> str:
        return colour((version - 1) / max(1, self.last - 1))


def is_pull(event: Event) -> bool:
    return event["event"] == "pull"


def draw(lanes: Sequence[str], events: Sequence[Event]) -> str:
    """SVG. Events have lane, event, end and, if they take time, begin and version."""
    picture = Picture(lanes, events)
    size = f"{LEFT + picture.width + RIGHT} {picture.bottom + 46}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}">',
        '<rect width="100%" height="100%" fill="white"/>',
        *legend(picture),
        *axis(picture),
    ]
    for lane in lanes:
        own = sorted((e for e in picture.events if e["lane"] == lane), key=lambda e: e["end"])
        y = picture.y(lane)
        parts.append(f'<text x="10" y="{y + 4}">{escape(lane)}</text>')
        parts.append(f'<path d="M{LEFT} {y}h{picture.width}" stroke="#e4e4e4"/>')
        parts += bars(picture, own)
        parts += marks(picture, own)
        parts += labels(picture, own)
    return "\n".join([*parts, "</svg>\n"])


def bars(picture: Picture, events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        if "begin" not in event:
            continue
        x, end, y = picture.x(event["begin"]), picture.x(event["end"]), picture.y(event["lane"])
        about = f"{event['event']}, version {event['version']}"
        if event["event"] in ("step", "generate"):
            yield bar(x, end - x, y, picture.colour(event["version"]), about)
        else:
            yield waiting(x, end - x, y)
            yield tick(end, y, event["event"], about)


def bar(x: float, width: float, y: int, fill: str, about: str) -> str:
    return (
        f'<rect x="{x}" y="{y - BAR // 2}" width="{max(1.0, width):.1f}" height="{BAR}" '
        f'fill="{fill}" stroke="white" stroke-width="0.6"><title>{about}</title></rect>'
    )


def waiting(x: float, width: float, y: int) -> str:
    return f'<path d="M{x} {y}h{max(0.0, width):.1f}" stroke="{PALE}" stroke-width="4"/>'


def tick(x: float, y: int, kind: str, about: str) -> str:
    """The end of a publish stands above the bar's middle, that of a pull goes through it."""
    top, length = (y - 11, 11) if kind == "publish" else (y - 9, 18)
    return (
        f'<path d="M{x:.1f} {top}v{length}" stroke="{DARK}" stroke-width="2">'
        f"<title>{about}</title></path>"
    )


def marks(picture: Picture, events: Sequence[Event]) -> Iterator[str]:
    """Deaths and beginnings, with their words under the lane."""
    free = float("-inf")
    for event in events:
        if event["event"] not in ("killed", "started"):
            continue
        x, y = picture.x(event["end"]), picture.y(event["lane"])
        yield mark(x, y, event["event"])
        if event["event"] == "started":
            yield beginning(x, picture.x(next_pull(events, event["end"])), y)
        word = event["event"]
        at = max(x, free)
        yield f'<text x="{at:.1f}" y="{y + 22}" font-size="{SMALL}">{word}</text>'
        free = at + text_width(word, SMALL) + 4


def next_pull(events: Sequence[Event], after: float) -> float:
    return min((e["begin"] for e in events if is_pull(e) and e["begin"] > after), default=after)


def beginning(x: float, end: float, y: int) -> str:
    """The interpreter starts and imports torch."""
    return f'<path d="M{x} {y}H{end}" stroke="{STARTED}" stroke-dasharray="2 4"/>'


def mark(x: float, y: int, kind: str) -> str:
    stroke = KILLED if kind == "killed" else STARTED
    if kind == "killed":
        return f'<path d="M{x - 5} {y - 9}l10 18m0 -18l-10 18" stroke="{stroke}" stroke-width="3"/>'
    return f'<path d="M{x} {y - 11}v22l7 -11z" fill="{stroke}" stroke="{stroke}"/>'


def labels(picture: Picture, events: Sequence[Event]) -> Iterator[str]:
    """Versions above what was published or pulled. One for which there is no room is left out: the
    mark says it when it is pointed at."""
    free = [float("-inf")] * len(LABEL_LEVELS)
    for event in events:
        if event["event"] not in ("publish", "pull"):
            continue
        text = str(event["version"])
        x, half = picture.x(event["end"]), text_width(text, SMALL) / 2
        level = next((n for n, end in enumerate(free) if x - half > end), None)
        if level is not None:
            free[level] = x + half + 1
            y = picture.y(event["lane"]) - BAR // 2 - LABEL_LEVELS[level] + 3
            yield (
                f'<text x="{x}" y="{y}" text-anchor="middle" font-size="{SMALL}" '
                f'class="version">{text}</text>'
            )


def legend(picture: Picture) -> Iterator[str]:
    """Two lines: what the shapes are, and what the colours are."""
    y, at = 24, float(LEFT)
    middle = picture.colour((1 + picture.last) // 2)
    shapes = [
        (bar(0, 26, 0, middle, "") + tick(26, 0, "publish", ""), "training step, then publish"),
        (tick(0, 0, "pull", "") + bar(4, 26, 0, middle, ""), "pull, then generation"),
        (waiting(0, 26, 0), "waits"),
        (mark(8, 0, "killed"), "killed"),
        (mark(8, 0, "started") + beginning(8, 30, 0), "its process starts"),
    ]
    for shape, text in shapes:
        yield f'<g transform="translate({at:.0f} {y})">{shape}</g>'
        yield f'<text x="{at + 36:.0f}" y="{y + 4}">{text}</text>'
        at += 36 + text_width(text, FONT) + 14
    yield from scale(picture, LEFT, 56)


def scale(picture: Picture, x: int, y: int) -> Iterator[str]:
    yield f'<text x="{x}" y="{y + 4}">colour: version 1</text>'
    at, pieces = x + text_width("colour: version 1", FONT) + 4, 40
    for piece in range(pieces):
        fill = colour(piece / (pieces - 1))
        place = f'x="{at + 5 * piece:.1f}" y="{y - BAR // 2}" width="5.5" height="{BAR}"'
        yield f'<rect {place} fill="{fill}"/>'
    end = at + 5 * pieces + 8
    yield f'<text x="{end:.0f}" y="{y + 4}">{picture.last}</text>'
    figures = "small figures: the version that was published or pulled there"
    yield f'<text x="{end + 50:.0f}" y="{y + 4}">{figures}</text>'


def axis(picture: Picture) -> Iterator[str]:
    bottom, length = picture.bottom, picture.length
    step = next((each for each in STEPS if length / each <= 14), STEPS[-1])
    for seconds in range(0, int(length) + 1, step):
        x = picture.x(picture.begin + seconds)
        yield f'<path d="M{x} {TOP - 8}V{bottom + 5}" stroke="#eee"/>'
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{seconds}</text>'
    yield f'<path d="M{LEFT} {bottom}h{picture.width}" stroke="#444"/>'
    middle = LEFT + picture.width / 2
    words = "seconds since the first training step"
    yield f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">{words}</text>'


def colour(share: float) -> str:
    """Between the two nearest of COLOURS."""
    at = min(max(share, 0.0), 1.0) * (len(COLOURS) - 1)
    low = min(int(at), len(COLOURS) - 2)
    mixed = (
        round(a + (b - a) * (at - low)) for a, b in zip(COLOURS[low], COLOURS[low + 1], strict=True)
    )
    return "#" + "".join(f"{each:02x}" for each in mixed)
