"""The run as a picture: one lane per rank, a dot for every version that was sent or received."""

from collections.abc import Sequence
from html import escape
from typing import Any

LANE = 44
LEFT, WIDTH = 150, 760
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")


def draw(lanes: Sequence[tuple[int, str]], events: Sequence[dict[str, Any]]) -> str:
    """SVG. `lanes` are ranks with their names; events have time, rank, event, version."""
    begin = min(event["time"] for event in events)
    length = max(event["time"] for event in events) - begin or 1.0
    rows = {rank: 40 + LANE * number for number, (rank, _) in enumerate(lanes)}
    height = 60 + LANE * len(lanes)

    def x(event: dict[str, Any]) -> float:
        return round(LEFT + WIDTH * (event["time"] - begin) / length, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 40} {height}" '
        'font-family="sans-serif" font-size="13">'
    ]
    for rank, name in lanes:
        y = rows[rank]
        parts.append(f'<text x="10" y="{y + 4}">{escape(name)}</text>')
        parts.append(f'<path d="M{LEFT} {y}h{WIDTH}" stroke="#ccc" stroke-dasharray="3 4"/>')
    for event in events:
        y, at = rows[event["rank"]], x(event)
        if event["event"] in ("sent", "received"):
            colour = COLOURS[event["version"] % len(COLOURS)]
            parts.append(f'<circle cx="{at}" cy="{y}" r="9" fill="{colour}"/>')
            parts.append(
                f'<text x="{at}" y="{y + 4}" text-anchor="middle" fill="white" font-size="11">'
                f"{event['version']}</text>"
            )
        elif event["event"] in ("killed", "started"):
            colour = "#c00" if event["event"] == "killed" else "#080"
            parts.append(f'<path d="M{at} {y - 14}v28" stroke="{colour}" stroke-width="2"/>')
            parts.append(
                f'<text x="{at + 4}" y="{y - 8}" fill="{colour}" font-size="11">'
                f"{event['event']}</text>"
            )
    seconds = f"{length:.0f} s"
    parts.append(f'<text x="{LEFT + WIDTH}" y="{height - 8}" text-anchor="end">{seconds}</text>')
    return "\n".join([*parts, "</svg>\n"])
