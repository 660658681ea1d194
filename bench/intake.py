"""The intake of torch tensors: nanoseconds per tensor, and torch's own share of it.

The floor is what a Python loop needs to ask each tensor for its address alone.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tensorbus._core import Tensors

AIM_NS = 100
ROUNDS = 60


def nanoseconds_each(work: Callable[[], object], count: int) -> float:
    repeats = max(1, 2000 // count)
    start = time.perf_counter_ns()
    for _ in range(repeats):
        work()
    return (time.perf_counter_ns() - start) / repeats / count


def measure(count: int) -> dict[str, float]:
    tensors = [torch.empty(4, 4) for _ in range(count)]
    works: dict[str, Callable[[], object]] = {
        "intake": lambda: Tensors(tensors),
        "data_ptr": lambda: [tensor.data_ptr() for tensor in tensors],
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(nanoseconds_each(work, count))
    quartiles = statistics.quantiles(times["intake"], n=4)
    return {
        "tensors": count,
        "ns_each": statistics.median(times["intake"]),
        "low": quartiles[0],
        "high": quartiles[2],
        "python_data_ptr_ns_each": statistics.median(times["data_ptr"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    results = [measure(count) for count in (32, 10_000)]
    print(f"{'tensors':>8}{'ns each':>10}{'quartiles':>16}{'aim':>6}{'Python data_ptr()':>20}")
    for row in results:
        spread = f"{row['low']:.0f} - {row['high']:.0f}"
        print(
            f"{row['tensors']:>8}{row['ns_each']:>10.0f}{spread:>16}{AIM_NS:>6}"
            f"{row['python_data_ptr_ns_each']:>20.0f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
