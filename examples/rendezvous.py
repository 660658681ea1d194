"""Processes that were started separately find each other through the store, live.

One server, several workers. Each worker publishes where it can be reached under a lease, waits for
the others, and meets them at a barrier. Then one worker is killed: its key vanishes by itself, the
others notice, and a replacement takes its place.

    python examples/rendezvous.py [--workers 4]
"""

import argparse
import os
import signal
import subprocess
import sys
import time

from tensorbus.kvstore import StoreServer, connect

LEASE_SECONDS = 1.0


def worker(url: str, rank: int, world: int) -> None:
    store = connect(url, component="demo")
    lease = store.lease(LEASE_SECONDS)
    store.set(f"address/{rank}", f"127.0.0.1:{40000 + rank} (pid {os.getpid()})", lease=lease)
    peers = store.wait_for_keys("address/*", world, value=None, timeout=30)
    store.barrier("everybody is here", world, timeout=30, member=rank)
    store.set(f"met/{rank}", str(len(peers)), lease=lease)
    store.wait_for_key("the end", timeout=60)


class Board:
    """One line per worker, redrawn in place on a terminal, appended elsewhere."""

    def __init__(self, world: int) -> None:
        self.start = time.perf_counter()
        self.lines = dict.fromkeys(range(world), "not started")
        self.live = sys.stdout.isatty()
        if self.live:
            print("\n" * (world - 1))

    def show(self, rank: int, text: str) -> None:
        self.lines[rank] = text
        elapsed = (time.perf_counter() - self.start) * 1e3
        if not self.live:
            print(f"{elapsed:7.1f} ms  worker {rank}: {text}", flush=True)
            return
        print(f"\x1b[{len(self.lines)}F", end="")
        for line_rank, line in self.lines.items():
            print(f"\x1b[2K  worker {line_rank}  {line}")


def demo(world: int) -> None:
    with StoreServer(port=0) as server, connect(server.url, component="demo") as store:
        print(f"store at {server.url}; {world} workers start now")
        start = time.perf_counter()
        workers = {rank: launch(server.url, rank, world) for rank in range(world)}
        board = Board(world)
        try:
            with store.watch("") as changes:
                follow(changes, board, until=lambda met: len(met) == world)
                met_after = time.perf_counter() - start

                victim = world - 1
                board.show(victim, "killed (SIGKILL); its lease runs out by itself")
                killed_at = time.perf_counter()
                os.kill(workers[victim].pid, signal.SIGKILL)
                workers[victim].wait()
                while changes.next(timeout=10).kind != "delete":
                    pass
                gone_after = time.perf_counter() - killed_at
                board.show(victim, f"gone: its keys vanished after {gone_after:.2f} s")

                replacement = connect(server.url, component="demo")
                address = f"address/{victim}"
                lease = replacement.lease(LEASE_SECONDS)
                replacement.set(address, f"replacement (pid {os.getpid()})", lease=lease)
                while (event := changes.next(timeout=10)).key != address or event.kind != "put":
                    pass
                board.show(victim, "replaced; everybody who watches has seen it")
                replacement.close()
            store.set("the end", "1")
            for rank in range(world - 1):
                if workers[rank].wait(timeout=10) != 0:
                    raise SystemExit(f"worker {rank} failed")
        finally:
            for process in workers.values():
                process.kill()
                process.wait()
        stats = server.stats()
        print()
        print(f"  {world} processes found each other in {met_after * 1e3:8.1f} ms (with start-up)")
        print(f"  a killed one was noticed after       {gone_after * 1e3:8.1f} ms")
        print(f"  requests served                      {stats.requests:8d}")
        print(f"  time inside the server, p50 / p99    {stats.request_p50_us:8.1f} us", end="")
        print(f" / {stats.request_p99_us:.1f} us")


def launch(url: str, rank: int, world: int) -> subprocess.Popen[bytes]:
    arguments = ["--worker", str(rank), "--workers", str(world), "--store", url]
    return subprocess.Popen([sys.executable, __file__, *arguments])


def follow(changes, board, until) -> None:
    met: set[str] = set()
    while not until(met):
        event = changes.next(timeout=30)
        topic, _, rank = event.key.partition("/")
        if event.kind != "put" or not rank:
            continue
        if topic == "address":
            board.show(int(rank), f"published {event.value.decode()}")
        if topic == "met":
            met.add(rank)
            board.show(int(rank), f"met {event.value.decode()} peers at the barrier")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4, help="how many processes (default 4)")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        worker(arguments.store, arguments.worker, arguments.workers)
    else:
        demo(arguments.workers)


if __name__ == "__main__":
    main()
