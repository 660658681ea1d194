"""How long N + N ranks take to register a batch of 100 tensors, all agents in this process."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from report import print_table, spread
from tensorbus import Shard, TensorBusClient
from tensorbus.kvstore import StoreServer

TENSORS = 100
ROWS = 64


def all_at_once(call: Callable[[int], object], ranks: list[int]) -> None:
    threads = [threading.Thread(target=call, args=[rank]) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(count: int) -> tuple[float, float]:
    """Seconds, and processor seconds of all ranks together."""
    senders, readers = list(range(count)), list(range(count, 2 * count))
    with StoreServer("127.0.0.1", 0) as server:
        clients = {rank: TensorBusClient.embedded(server.url, rank) for rank in senders + readers}
        tensors = {}
        for rank in senders + readers:
            shape = (ROWS // count, ROWS) if rank in senders else (ROWS, ROWS // count)
            tensors[rank] = [(torch.zeros(shape), "pair") for _ in range(TENSORS)]

        def meet(rank: int) -> None:
            names = ("train", "infer") if rank in senders else ("infer", "train")
            placements = [Shard(0 if rank in senders else 1)]
            clients[rank].init_pair("pair", *names, count, (count,), placements, timeout=60)

        def register(rank: int) -> None:
            clients[rank].register_tensors("batch", tensors[rank], timeout=150)

        all_at_once(meet, senders + readers)
        began, worked = time.perf_counter(), time.process_time()
        all_at_once(register, senders + readers)
        figures = time.perf_counter() - began, time.process_time() - worked
        all_at_once(lambda rank: clients[rank].close(), senders + readers)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    table = []
    for count in (2, 8, 16, 32):
        runs = [measure(count) for _ in range(3)]
        seconds = spread([each[0] for each in runs])
        worked = spread([each[1] for each in runs])
        name = f"{TENSORS} tensors, {count} + {count} ranks"
        rows.append({"name": name, "s": seconds._asdict(), "processor_s": worked._asdict()})
        table.append([name, seconds.text(2), worked.text(2)])
    print_table(["registration of", "s", "processor s"], table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
