"""torch's gloo send/recv between two processes of this host, against a copy of the same bytes.

For comparison with the rows of fabric_bench: its reads are of the same sizes, and both are given as
a share of the copy speed in their own run.
"""

import argparse
import json
import multiprocessing
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
from report import Spread, print_table, ratio, spread

SIZES = {"64 MiB": 64 << 20, "512 MiB": 512 << 20}
ROUNDS = 9
ROUND_TRIPS = 300
SMALL = 64


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def join(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def be_the_sender(port: int) -> None:
    join(1, port)
    for size in SIZES.values():
        tensor = torch.ones(size, dtype=torch.uint8)
        for _ in range(ROUNDS + 1):
            dist.barrier()
            dist.send(tensor, 0)
    small = torch.ones(SMALL, dtype=torch.uint8)
    for _ in range(ROUND_TRIPS):
        dist.recv(small, 0)
        dist.send(small, 0)
    dist.destroy_process_group()


def receive(size: int) -> tuple[list[float], list[float]]:
    """GB/s of a copy and of recv, in turns."""
    source = torch.ones(size, dtype=torch.uint8)
    target = torch.zeros(size, dtype=torch.uint8)
    copies: list[float] = []
    receives: list[float] = []
    for number in range(ROUNDS + 1):
        start = time.perf_counter()
        target.copy_(source)
        copied = time.perf_counter() - start
        dist.barrier()
        start = time.perf_counter()
        dist.recv(target, 1)
        received = time.perf_counter() - start
        if number > 0:  # the first touches pages
            copies.append(size / copied / 1e9)
            receives.append(size / received / 1e9)
    return copies, receives


def round_trip() -> Spread:
    small = torch.ones(SMALL, dtype=torch.uint8)
    times = []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        dist.send(small, 1)
        dist.recv(small, 1)
        times.append((time.perf_counter() - start) * 1e6)
    return spread(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    port = free_port()
    sender = multiprocessing.get_context("spawn").Process(target=be_the_sender, args=(port,))
    sender.start()
    try:
        join(0, port)
        rows: list[dict[str, object]] = []
        cells: list[list[str]] = []
        for name, size in SIZES.items():
            copies, receives = receive(size)
            share = ratio(receives, copies)
            title = f"gloo send/recv, {name}"
            cells.append([title, spread(copies).text(), spread(receives).text(), share.text(2)])
            rows.append({"name": title, "copy": spread(copies), "gloo": spread(receives)})
        trip = round_trip()
        cells.append(["gloo 64 B, round trip", "", trip.text() + " us", ""])
        rows.append({"name": "gloo 64 B, round trip", "us": trip})
        dist.destroy_process_group()
        sender.join(30)
    finally:
        if sender.is_alive():
            sender.kill()
    print_table(["what", "copy GB/s", "gloo GB/s", "ratio"], cells)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
