"""What a run says: a line for each thing that happens, and a table at the end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]


def print_line(event: Event, began: float) -> None:
    text = describe(event)
    if text:
        print(f"{event['end'] - began:6.1f} s  {event['lane']:<10} {text}", flush=True)


def describe(event: Event) -> str:
    """Empty for what would only fill the screen: the second ranks, every step."""
    kind, second = event["event"], event["lane"].endswith(" 1")
    if kind == "step" and not second and event["version"] % 5 == 1:
        return f"version {event['version']}, loss {event['loss']:.2f}"
    if kind == "generate" and not second:
        text = event["text"][:30].replace("\n", "/")
        late = event["newest"] - event["version"]
        return f'version {event["version"]}, {late} behind: "{text}"'
    if kind == "pull" and event["first"]:
        return f"first pull: version {event['version']}"
    return kind if kind in ("killed", "started") else ""


def print_table(events: Sequence[Event], lanes: Sequence[str]) -> None:
    trainers = [lane for lane in lanes if lane.startswith("trainer")]
    print()
    print(f"{'':<10} versions  step ms  in publish ms (most)  plain copy ms  beyond it ms")
    for lane in trainers:
        print(trainer_row(lane, of(events, lane)))
    print()
    print(f"{'':<10} pulls  newest  behind (most)  first pull ms    pull ms   GB/s  MB compared")
    for lane in lanes:
        if lane not in trainers:
            print(engine_row(lane, of(events, lane), first_version_at(events)))
    losses = [event["loss"] for event in of(events, trainers[0], "step")]
    print()
    print(f"the loss fell from {losses[0]} to {losses[-1]}; every byte of every pulled version was")
    print("compared with what the trainers had when they published it")


def trainer_row(lane: str, events: Sequence[Event]) -> str:
    steps, published = seconds(events, "step"), seconds(events, "publish")[1:]  # the first connects
    (copy,) = [event["seconds"] for event in events if event["event"] == "copied"]
    inside = statistics.median(published)
    return (
        f"{lane:<10} {len(steps):8} {ms(statistics.median(steps)):>8} "
        f"{ms(inside):>13} {'(' + ms(max(published)) + ')':>7} {ms(copy):>14} "
        f"{ms(max(0.0, inside - copy)):>13}"
    )


def engine_row(lane: str, events: Sequence[Event], there_since: float) -> str:
    pulls = [event for event in events if event["event"] == "pull"]
    behind = [e["newest"] - e["version"] for e in events if e["event"] == "generate"]
    compared = [event["bytes"] for event in events if event["event"] == "verified"]
    at_once = [e["end"] - e["begin"] for e in pulls if e["first"] and e["begin"] > there_since]
    warm = [event["end"] - event["begin"] for event in pulls if event["ready"]]
    joining = ms(at_once[-1]) if at_once else "-"
    speed = f"{compared[0] / statistics.median(warm) / 1e9:6.2f}" if warm else "     -"
    return (
        f"{lane:<10} {len(pulls):5} {max(e['version'] for e in pulls):7} "
        f"{statistics.mean(behind):7.1f} {'(' + str(max(behind)) + ')':>6} {joining:>14} "
        f"{ms(statistics.median(warm)) if warm else '-':>10} {speed} {sum(compared) / 1e6:12.0f}"
    )


def first_version_at(events: Sequence[Event]) -> float:
    """When all trainers had published it: who came earlier waited for it."""
    return max(e["end"] for e in events if e["event"] == "publish" and e["version"] == 1)


def of(events: Sequence[Event], lane: str, kind: str = "") -> list[Event]:
    return [e for e in events if e["lane"] == lane and kind in ("", e["event"])]


def seconds(events: Sequence[Event], kind: str) -> list[float]:
    return [event["end"] - event["begin"] for event in events if event["event"] == kind]


def ms(value: float) -> str:
    return f"{value * 1e3:.1f}"
