"""State dicts of 1,000 tensors from one process to another, against the bytes as a plain batch.

"batch": the 1,000 tensors registered as one batch; "one tensor": all their bytes in one. All are in
the pool, except "copied": there the link copies them first. "sample" and "full": with checksums.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import tensorbus
import torch
from report import print_table, ratio, spread
from tensorbus import BatchHandler, Link, Replicate, TensorBusClient
from tensorbus.kvstore import StoreServer

TENSORS = 1000
ELEMENTS = 1 << 16  # of each; float32
VERIFY = {"link": "off", "copied": "off", "sample": "sample", "full": "full"}
KINDS = ["batch", "one tensor", *VERIFY]


class Rank:
    """All kinds at one end."""

    def __init__(self, url: str, rank: int) -> None:
        self.client = TensorBusClient.embedded(url, rank)
        self.names = ("trainer", "engine") if rank == 0 else ("engine", "trainer")
        whole = tensorbus.share_(torch.zeros(TENSORS * ELEMENTS))
        parts = {f"layer{i}.w": part for i, part in enumerate(whole.split(ELEMENTS))}
        self.states = dict.fromkeys(VERIFY, parts)
        if rank == 0:
            self.states["copied"] = {name: part.clone() for name, part in parts.items()}
        self.client.init_pair("plain", *self.names, 1, (1,), [Replicate()])
        self.batches: dict[str, BatchHandler] = {
            "batch": self.client.register_tensors(
                "batch", [(part, "plain", name) for name, part in parts.items()]
            ),
            "one tensor": self.client.register_tensors("one", [(whole, "plain")]),
        }
        self.links: dict[str, Link] = {
            kind: self.client.link(*self.names, 1, verify=verify) for kind, verify in VERIFY.items()
        }

    def move(self, kind: str) -> None:
        sends = self.names[0] == "trainer"
        if kind in self.batches:
            self.batches[kind].transfer("send" if sends else "recv", blocking=True)
        elif sends:
            self.links[kind].send_state_dict(kind, self.states[kind])
        else:
            self.links[kind].recv_state_dict(kind, self.states[kind])


def engine(url: str, rounds: int) -> None:
    rank = Rank(url, 1)
    for _ in range(rounds + 1):
        for kind in KINDS:
            rank.move(kind)
    rank.client.close()


def measure(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with StoreServer("127.0.0.1", 0) as server:
        command = [sys.executable, __file__, "--engine", server.url, "--rounds", str(rounds)]
        child = subprocess.Popen(command)
        try:
            rank = Rank(server.url, 0)
            for turn in range(rounds + 1):
                for kind in KINDS:
                    started = time.perf_counter()
                    rank.move(kind)
                    if turn > 0:
                        times[kind].append(time.perf_counter() - started)
            child.wait(30)
            rank.client.close()
        finally:
            child.kill()
            child.wait()
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--engine")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.engine:
        return engine(options.engine, options.rounds)
    times = measure(options.rounds)
    rows, table = [], []
    for kind, found in times.items():
        against = ratio(found, times["batch"])
        milliseconds = spread([1e3 * each for each in found])
        speed = 4e-9 * TENSORS * ELEMENTS / spread(found).median
        rows.append({"name": f"state_dict {kind}", "seconds": found, "against_batch": against})
        table.append([kind, milliseconds.text(), f"{speed:.1f}", against.text(2)])
    print_table(["1,000 x 256 KiB", "ms", "GB/s", "time against batch"], table)
    if options.json:
        options.json.write_text(json.dumps(rows))
    return None


if __name__ == "__main__":
    main()
