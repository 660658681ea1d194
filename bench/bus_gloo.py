"""Shard(0) -> Shard(1) of 256 MiB on two ranks: the bus, torch's DTensor, a gather with broadcast.

The peers run over gloo in the same two processes, in turns with ours; both ranks send and receive.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tensorbus
import torch
import torch.distributed as dist
from fabric_gloo import free_port, join
from report import print_table, ratio, spread
from tensorbus.kvstore import StoreServer
from torch.distributed.tensor import DeviceMesh, DTensor, Shard

RANKS = 2
ROWS, COLUMNS = 8192, 8192
GIGABYTES = ROWS * COLUMNS * 4 / 1e9
ROUNDS = 5
AIM = 10


def by_bus(
    client: tensorbus.TensorBusClient, rows: torch.Tensor, columns: torch.Tensor
) -> Callable[[], None]:
    client.init_pair("p", "from", "to", RANKS, (RANKS,), [tensorbus.Shard(0)], blocking=False)
    client.init_pair("p", "to", "from", RANKS, (RANKS,), [tensorbus.Shard(1)], blocking=False)
    with ThreadPoolExecutor() as pool:  # each waits for the other
        source, target = pool.map(
            lambda side: client.register_tensors("b", [(side[1], "p")], role=side[0]),
            [("from", rows), ("to", columns)],
        )

    def run() -> None:
        sent = source.transfer("send")
        target.transfer("recv").result(60)
        sent.result(60)

    return run


def by_dtensor(rows: torch.Tensor) -> Callable[[], None]:
    mesh = DeviceMesh("cpu", list(range(RANKS)))
    held = DTensor.from_local(rows, mesh, [Shard(0)])

    def run() -> None:
        held.redistribute(placements=[Shard(1)]).to_local()

    return run


def by_broadcast(rank: int, rows: torch.Tensor, columns: torch.Tensor) -> Callable[[], None]:
    whole = torch.empty(ROWS, COLUMNS)
    parts = list(whole.chunk(RANKS))

    def run() -> None:
        dist.gather(rows, parts if rank == 0 else None, 0)
        dist.broadcast(whole, 0)
        columns.copy_(whole.chunk(RANKS, 1)[rank])

    return run


def measure(url: str, rank: int) -> dict[str, list[float]]:
    """GB/s of each way, in turns; as slow as the slower rank."""
    rows = tensorbus.empty((ROWS // RANKS, COLUMNS), torch.float32)
    rows.fill_(rank + 1)
    columns = torch.zeros(ROWS, COLUMNS // RANKS)
    client = tensorbus.TensorBusClient.embedded(url, rank)
    ways = {
        "bus": by_bus(client, rows, columns),
        "DTensor": by_dtensor(rows),
        "gather and broadcast": by_broadcast(rank, rows, columns),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            dist.barrier()
            start = time.perf_counter()
            way()
            dist.barrier()
            if number > 0:  # the first touches pages
                speeds[name].append(GIGABYTES / (time.perf_counter() - start))
    halves = columns.chunk(RANKS)
    assert all(bool((half == number + 1).all()) for number, half in enumerate(halves))
    dist.barrier()
    client.close()
    return speeds


def be_the_other(port: int, url: str) -> None:
    torch.set_num_threads(1)
    join(1, port)
    measure(url, 1)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    port = free_port()
    with StoreServer("127.0.0.1", 0) as store:
        spawn = multiprocessing.get_context("spawn")
        other = spawn.Process(target=be_the_other, args=(port, store.url))
        other.start()
        try:
            join(0, port)
            speeds = measure(store.url, 0)
            dist.destroy_process_group()
            other.join(30)
        finally:
            if other.is_alive():
                other.kill()
    rows: list[dict[str, object]] = []
    cells: list[list[str]] = []
    for peer in ("DTensor", "gather and broadcast"):
        share = ratio(speeds["bus"], speeds[peer])
        aim = f">= {AIM}" if peer == "DTensor" else ""
        met = ("yes" if share.median >= AIM else "no") if aim else ""
        title = f"Shard(0) -> Shard(1), 256 MiB, against {peer}"
        cells.append(
            [
                title,
                spread(speeds[peer]).text(2),
                spread(speeds["bus"]).text(2),
                share.text(1),
                aim,
                met,
            ]
        )
        rows.append(
            {"name": title, "peer": spread(speeds[peer]), "ours": spread(speeds["bus"]),
             "ratio": share, "aim": aim, "met": met}
        )  # fmt: skip
    print_table(["what", "peer GB/s", "ours GB/s", "ratio", "aim", "met"], cells)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
