"""Making a patch against what numpy and torch offer for it, in turns with ``delta_bench``.

Theirs: which values differ, their positions as integers, and the new values, as systems in Python
do it. Times are of one thread; bytes are those that would be sent.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import report
import torch

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "bench" / "bin" / "delta_bench"
SHARES = (0.0001, 0.001, 0.01, 0.03, 0.1, 0.5)
ROUNDS = 7


class Ours:
    """The program, which holds two versions of its own of which the same share differs."""

    def __init__(self, share: float) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, "--turns"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.elements, self.bytes = map(int, self.ask(f"{share}").split())

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def milliseconds(self) -> float:
        return float(self.ask("go"))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def versions(elements: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Two versions of bfloat16 weights, as their bits."""
    random = np.random.default_rng(1)
    before = random.integers(0x3C00, 0x3E00, elements, dtype=np.uint16)
    changed = random.random(elements, dtype=np.float32) < share
    return before, before ^ changed.astype(np.uint16)


def by_numpy(before: np.ndarray, after: np.ndarray) -> int:
    positions = np.flatnonzero(before != after).astype(np.uint32)
    return positions.nbytes + after[positions].nbytes


def by_torch(before: torch.Tensor, after: torch.Tensor) -> int:
    positions = torch.ne(before, after).nonzero().squeeze(1)
    values = after[positions]
    return positions.to(torch.int32).nbytes + values.nbytes


def measure(share: float) -> list[dict[str, object]]:
    ours = Ours(share)
    before, after = versions(ours.elements, share)
    tensors = (torch.from_numpy(before.view(np.int16)), torch.from_numpy(after.view(np.int16)))
    peers: dict[str, Callable[[], int]] = {
        "numpy": lambda: by_numpy(before, after),
        "torch": lambda: by_torch(*tensors),
    }
    own: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(ROUNDS):
        own.append(ours.milliseconds())
        for name, work in peers.items():
            times[name].append(milliseconds(work))
    ours.close()
    return [
        row(share, name, report.ratio(times[name], own), ours.bytes, peers[name]) for name in peers
    ]


def row(
    share: float, name: str, spread: report.Spread, own_bytes: int, work: Callable[[], int]
) -> dict[str, object]:
    return {
        "name": f"diff and patch, {100 * share:g} %",
        "against": name,
        "ratio": spread.median,
        "low": spread.low,
        "high": spread.high,
        "aim": ">= 1",
        "bytes_ratio": work() / own_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [each for share in SHARES for each in measure(share)]
    report.print_table(
        ["what", "against", "their time / ours (quartiles)", "aim", "their bytes / ours"],
        [
            [
                str(each["name"]),
                str(each["against"]),
                report.Spread(each["ratio"], each["low"], each["high"]).text(2),
                str(each["aim"]),
                f"{each['bytes_ratio']:.2f}",
            ]
            for each in rows
        ],
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
