"""The store against torch's TCPStore and a bare epoll echo, all in one run: ``bench/store.py``.

Each round measures every contender once, in an order that turns, and the ratios are taken round by
round. Servers and clients are processes of their own; where clients are many (storm, barrier) they
are threads of one process.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from report import Spread, print_table, quantile, ratio, spread
from store_processes import Client, clients, servers

CONTENDERS = [
    ("C++", "echo"),
    ("C++", "ours"),
    ("Python", "echo"),
    ("Python", "ours"),
    ("Python", "torch"),
]
MOST_CLIENTS = 8
CALLS = 1000  # per contender and round, shared by its clients
WAKES = 20
PAUSE_BEFORE_WAKE = 2_000_000  # ns: by then who waits sleeps
HEAD_START = 5_000_000  # ns: by then all clients have read what to do
STORM_CLIENTS, STORM_KEYS = 64, 100
BARRIER_CLIENTS = 1000

Workers = dict[str, list[Client]]


@dataclass
class Case:
    name: str
    unit: str  # "us" or "ms"
    measure: Callable[[Workers, str, str, str], list[float]]  # workers, language, system, key: ns
    times_echo: float | None = None  # the aim: at most so many times the echo
    times_torch: float | None = None
    tails: bool = True  # whether one round gives enough samples for a p99
    p50: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by contender, per round
    p99: dict[tuple[str, str], list[float]] = field(default_factory=dict)


def ask(workers: list[Client], lines: list[str]) -> list[list[int]]:
    for worker, line in zip(workers, lines, strict=True):
        worker.tell(line)
    return [worker.answer() for worker in workers]


def calls(operation: str, count: int) -> Callable[[Workers, str, str, str], list[float]]:
    def measure(workers: Workers, language: str, system: str, key: str) -> list[float]:
        start = time.monotonic_ns() + HEAD_START
        lines = [f"{operation} {system} {key}/{i} {CALLS // count} {start}" for i in range(count)]
        answers = ask(workers[language][:count], lines)
        return [float(number) for answer in answers for number in answer]

    return measure


def wake(count: int) -> Callable[[Workers, str, str, str], list[float]]:
    """From the call of set in one process to the return of wait in others."""

    def measure(workers: Workers, language: str, system: str, key: str) -> list[float]:
        start = time.monotonic_ns() + HEAD_START
        lines = [f"wait {system} {key} {WAKES}"] * count
        lines.append(f"wake {system} {key} {WAKES} {start} {PAUSE_BEFORE_WAKE}")
        *woken, set_at = ask(workers[language][: count + 1], lines)
        return [float(b - a) for times in woken for a, b in zip(set_at, times, strict=True)]

    return measure


def crowd(line: str) -> Callable[[Workers, str, str, str], list[float]]:
    def measure(workers: Workers, language: str, system: str, key: str) -> list[float]:
        worker = workers[language][0]
        worker.tell(line.format(system=system, name=key))
        return [float(number) for number in worker.answer()]

    return measure


def all_cases() -> list[Case]:
    cases = []
    for count in (1, MOST_CLIENTS):
        who = "1 client" if count == 1 else f"{count} clients"
        cases += [
            Case(f"get, {who}", "us", calls("get", count), times_echo=2),
            Case(f"acknowledged set, {who}", "us", calls("set", count), times_echo=2),
            Case(f"add, {who}", "us", calls("add", count)),
            Case(f"wake after set, {who}", "us", wake(count), times_torch=1),
        ]
    storms = {
        "storm": f"storm, {STORM_CLIENTS} clients x {STORM_KEYS} keys",
        "acknowledged": "storm, torch's sets acknowledged too",
        "batches": "storm, one multi_set per client",
    }
    cases += [
        Case(
            name,
            "ms",
            crowd(f"{what} {{system}} {{name}} {STORM_CLIENTS} {STORM_KEYS}"),
            times_torch=1,
            tails=False,
        )
        for what, name in storms.items()
    ]
    barrier = f"barrier {{system}} {{name}} {BARRIER_CLIENTS}"
    return [
        *cases,
        Case(f"barrier of {BARRIER_CLIENTS:,}", "ms", crowd(barrier), tails=False),
    ]


def measure(cases: list[Case], workers: Workers, rounds: int) -> None:
    for turn in range(-1, rounds):  # turn -1 warms up
        for number, case in enumerate(cases):
            divisor = {"us": 1e3, "ms": 1e6}[case.unit]
            first = turn % len(CONTENDERS)
            for language, system in CONTENDERS[first:] + CONTENDERS[:first]:
                key = f"case{number}/{language}/round{turn}"
                times = [ns / divisor for ns in case.measure(workers, language, system, key)]
                if turn >= 0:
                    contender = (language, system)
                    case.p50.setdefault(contender, []).append(quantile(times, 0.5))
                    case.p99.setdefault(contender, []).append(quantile(times, 0.99))


def rows_of(case: Case) -> list[dict[str, object]]:
    rows = []
    for language, system in CONTENDERS:
        mine = case.p50[language, system]
        row: dict[str, object] = {
            "name": case.name,
            "client": language,
            "system": system,
            "unit": case.unit,
            "p50": spread(mine)._asdict(),
            "p99": spread(case.p99[language, system])._asdict() if case.tails else None,
        }
        if system == "ours":
            verdicts = []
            for other, most in (("echo", case.times_echo), ("torch", case.times_torch)):
                if (language, other) not in case.p50:
                    continue
                compared = ratio(mine, case.p50[language, other])
                row[f"times_{other}"] = compared._asdict()
                if most is not None:
                    verdicts.append((f"<= {most:g} x {other}", compared.median <= most))
            if verdicts:
                row["aim"], row["met"] = verdicts[0]
        rows.append(row)
    return rows


def shown(row: dict[str, object], key: str, digits: int) -> str:
    value = row.get(key)
    return Spread(**value).text(digits) if isinstance(value, dict) else ""


def print_rows(rows: list[dict[str, object]]) -> None:
    header = ["", "client", "system", "unit", "p50", "p99", "x echo", "x torch", "aim", "met"]
    cells = []
    last_name = None
    for row in rows:
        name = str(row["name"])
        met = {True: "yes", False: "NO"}.get(row.get("met"), "")
        cells.append(
            [
                name if name != last_name else "",
                str(row["client"]),
                str(row["system"]),
                str(row["unit"]),
                shown(row, "p50", 1),
                shown(row, "p99", 1),
                shown(row, "times_echo", 2),
                shown(row, "times_torch", 2),
                str(row.get("aim", "")),
                met,
            ]
        )
        last_name = name
    print_table(header, cells)
    print("median over rounds (quartiles); ratios are taken round by round; lower is better")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows there too")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    arguments = parser.parse_args()
    # A thousand clients of several systems live in one process.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))

    cases = [case for case in all_cases() if arguments.only in case.name]
    with servers() as ports, clients(MOST_CLIENTS + 1, ports) as workers:
        measure(cases, workers, arguments.rounds)
    rows = [row for case in cases for row in rows_of(case)]
    print_rows(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
