"""Tensors between Ray actors: ours, Ray's object store and Ray's gloo, in one run.

"consume": an existing ref is passed to an actor's method; the floor is the same call with a tensor
of no bytes. "pull": an actor gets a ref into tensors that it has, as weights are synchronised.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(
    RAY_AUTH_MODE="disabled",
    RAY_worker_niceness="0",
    RAY_USAGE_STATS_ENABLED="0",
    PYTHONPATH=str(Path(__file__).parent),
)

import ray
from ray_actors import Sink, Source
from report import print_table, ratio, spread

MIB = 1 << 20
CONSUMED = {"0 B": 0, "1 MiB": MIB // 4, "64 MiB": 16 * MIB, "512 MiB": 128 * MIB}
PULLED = {
    "64 MiB": (1, 16 * MIB),
    "512 MiB": (1, 128 * MIB),
    "1,000 x 256 KiB": (1000, MIB // 16),
    "250 MiB": (1, 1000 * MIB // 16),
}
OURS = ["frozen", "pooled", "private"]
# Ways that take new memory for every value and give it back. Whatever comes next pays for that, so
# they have rounds of their own.
WASTEFUL = ["plasma", "gloo"]


def in_turns(
    calls: dict[str, Callable[[], float]], rounds: int, reference: str
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of every kind, and those of the reference in the same rounds."""
    times: dict[str, list[float]] = {kind: [] for kind in calls}
    beside: dict[str, list[float]] = {}
    calm = [kind for kind in calls if kind not in WASTEFUL]
    for group in [calm, *([reference, kind] for kind in WASTEFUL if kind in calls)]:
        found: dict[str, list[float]] = {kind: [] for kind in group}
        for turn in range(rounds + 1):
            for kind in group:
                seconds = calls[kind]()
                if turn > 0:
                    found[kind].append(seconds)
        for kind in group:
            if kind != reference or group is calm:
                times[kind], beside[kind] = found[kind], found[reference]
    return times, beside


def consume(source: Any, sink: Any, rounds: int) -> list[dict[str, Any]]:
    rows = []
    empty = ray.get(source.put.remote("pooled", 1, 0))[0]
    for size, elements in CONSUMED.items():
        refs = {"empty": empty}
        for kind in [*OURS, "plasma", "numpy"]:
            refs[kind] = ray.get(source.put.remote(kind, 1, elements))[0]
        if elements > 0:  # gloo never ends a transfer of nothing
            refs["gloo"] = source.gloo.remote(1, elements)
        times, empty_calls = in_turns(
            {kind: partial(consuming, sink, ref) for kind, ref in refs.items()}, rounds, "empty"
        )
        for kind, found in times.items():
            rows.append(
                {
                    "name": f"consume {size} {kind}",
                    "size": size,
                    "kind": kind,
                    "ms": spread([1e3 * t for t in found]),
                    "to_empty": ratio(found, empty_calls[kind]),
                }
            )
        del refs
    return rows


def consuming(sink: Any, ref: Any) -> float:
    started = time.perf_counter()
    ray.get(sink.consume.remote(ref))
    return time.perf_counter() - started


def call(method: Any, *arguments: Any) -> Callable[[], float]:
    return lambda: ray.get(method.remote(*arguments))


def pull(source: Any, sink: Any, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for size, (count, elements) in PULLED.items():
        calls = {"memcpy": call(sink.memcpy, count, elements)}
        for kind in ["pooled", "private", "numpy", "plasma"]:
            refs = ray.get(source.put.remote(kind, count, elements))
            calls[kind] = call(sink.pull, refs, kind, count, elements)
        if count == 1:
            place = ray.get(source.private_place.remote())
            calls["process_vm_readv"] = call(sink.bare_read, *place, elements)
        times, memcpy = in_turns(calls, rounds, "memcpy")
        for kind, found in times.items():
            rows.append(
                {
                    "name": f"pull {size} {kind}",
                    "size": size,
                    "kind": kind,
                    "ms": spread([1e3 * t for t in found]),
                    "gb_per_s": count * elements * 4 / spread(found).median / 1e9,
                    "to_memcpy": ratio(memcpy[kind], found),
                    "times": found,
                }
            )
        del refs, calls
    return rows


def aims(rows: list[dict[str, Any]]) -> list[list[str]]:
    by_name = {row["name"]: row for row in rows}

    def speed(mine: str, other: str) -> str:
        return ratio(by_name[f"pull {other}"]["times"], by_name[f"pull {mine}"]["times"]).text(2)

    frozen = by_name["consume 512 MiB frozen"]["to_empty"].text(2)
    return [
        ["consume 512 MiB frozen, x the empty call", frozen, "<= 1.3"],
        ["pull 64 MiB pooled, of memcpy", speed("64 MiB pooled", "64 MiB memcpy"), ">= 0.7"],
        ["pull 512 MiB pooled, of memcpy", speed("512 MiB pooled", "512 MiB memcpy"), ">= 0.7"],
        [
            "pull 512 MiB private, of process_vm_readv",
            speed("512 MiB private", "512 MiB process_vm_readv"),
            ">= 0.9",
        ],
        [
            "pull 1,000 x 256 KiB pooled, x the time in one",
            speed("250 MiB pooled", "1,000 x 256 KiB pooled"),
            "< 2",
        ],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="tbray", dir="/tmp")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=folder,
        object_store_memory=4 << 30,
    )
    try:
        source, sink = Source.options(num_cpus=0).remote(), Sink.options(num_cpus=0).remote()
        from ray.experimental.collective import create_collective_group

        create_collective_group([source, sink], backend="torch_gloo")
        rows = consume(source, sink, arguments.rounds)
        print_table(
            ["consume", "ms", "to the empty call"],
            [
                [
                    f"{r['size']} {r['kind']}",
                    r["ms"].text(),
                    r["to_empty"].text(2),
                ]
                for r in rows
            ],
        )
        print()
        pulled = pull(source, sink, arguments.rounds)
        print_table(
            ["pull into targets", "ms", "GB/s", "to memcpy"],
            [
                [
                    f"{r['size']} {r['kind']}",
                    r["ms"].text(),
                    f"{r['gb_per_s']:.2f}",
                    r["to_memcpy"].text(2),
                ]
                for r in pulled
            ],
        )
        rows += pulled
        print()
        print_table(["aim", "found", "aimed at"], aims(rows))
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
