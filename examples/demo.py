"""Shows weight_sync.py at work: a store, agents, two trainers, two engines, one of which hangs.

python examples/demo.py [--rounds 6]
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tensorbus.kvstore import CoreStore, StoreServer, connect
from weight_sync import RANKS, make_model

HERE = Path(__file__).parent
PROGRAM = Path(sys.executable).parent / "tensorbus"
WORKERS = {0: "trainer", 1: "trainer", 2: "engine", 3: "engine"}
VICTIM = 3
BAR = 32


class Job:
    """The processes of the demo. None outlives it."""

    def __init__(self, url: str, folder: str, rounds: int) -> None:
        self.url, self.folder, self.rounds = url, folder, rounds
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.agents = subprocess.Popen(
            [PROGRAM, "agent", "--store", url, "--rank=0", "--world-size=4", "--spawn=4",
             f"--command-queue={folder}/{{rank}}.queue", f"--state={folder}/{{rank}}.state"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self.agents.stdout is not None
        for _ in WORKERS:
            self.agents.stdout.readline()  # ready rank ...

    def start(self, rank: int, hangs_in: int = 0) -> None:
        command = [sys.executable, HERE / "weight_sync.py", WORKERS[rank], "--store", self.url]
        environment = os.environ | {
            "AGENT_RANK": str(rank),
            "TENSOR_BUS_COMMAND_QUEUE_PATH": f"{self.folder}/{rank}.queue",
            "TENSOR_BUS_STATE_PATH": f"{self.folder}/{rank}.state",
            "TENSORBUS_LOG": "error",
        }
        self.workers[rank] = subprocess.Popen(
            [*command, f"--rounds={self.rounds}", f"--hangs-in={hangs_in}"], env=environment
        )

    def kill(self, rank: int) -> None:
        worker = self.workers.pop(rank)
        worker.kill()
        worker.wait()

    def check(self) -> None:
        for rank, worker in self.workers.items():
            if worker.poll():
                raise SystemExit(f"{WORKERS[rank]} {rank} ended with code {worker.returncode}")

    def close(self) -> None:
        for worker in self.workers.values():
            worker.kill()
            worker.wait()
        self.agents.terminate()
        self.agents.wait()


@contextlib.contextmanager
def started(rounds: int, hangs_in: int) -> Iterator[tuple[Job, CoreStore]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        StoreServer(port=0) as server,
        connect(server.url, component="demo") as store,
        contextlib.closing(Job(server.url, folder, rounds)) as job,
    ):
        for rank in WORKERS:
            job.start(rank, hangs_in if rank == VICTIM else 0)
        yield job, store


def wait_for(job: Job, store: CoreStore, keys: list[str], tick=lambda: None) -> list[str]:
    """Their values, once all are there."""
    end = time.monotonic() + 60
    while None in (values := store.multi_get(keys)):
        job.check()
        tick()
        if time.monotonic() > end:
            raise SystemExit(f"no {keys} in a minute")
        time.sleep(0.01)
    return [value.decode() for value in values if value is not None]


def bar(store: CoreStore, step: int, rounds: int, text: str = "") -> None:
    parts = store.multi_get([f"progress/{rank}" for rank in (2, 3)])
    share = sum(float(part or 0) for part in parts) / len(parts)
    filled = round(BAR * (step - 1 + share) / rounds)
    if sys.stdout.isatty():
        line = f"  [{'#' * filled}{'.' * (BAR - filled)}] round {step} of {rounds} {text}"
        print(f"\r\x1b[2K{line}", end="", flush=True)


def run_round(job: Job, store: CoreStore, step: int, kill: bool) -> tuple[float, str]:
    """The time of a round and how it ended."""
    for rank in (2, 3):
        store.set(f"progress/{rank}", "0")
    survivors = [2] if kill else [2, 3]
    store.set(f"go/{step}", "")
    if kill:  # when the other has read: so the round is offered, and the trainers wait for it
        wait_for(job, store, [f"read/{step}/{rank}" for rank in survivors])
        job.kill(VICTIM)
    keys = [f"sent/{step}/{rank}" for rank in (0, 1)]
    keys += [f"verified/{step}/{rank}" for rank in survivors]
    values = wait_for(job, store, keys, lambda: bar(store, step, job.rounds))
    sent = [value.split(" ", 1) for value in values[:2]]
    verified = sum(int(count) for count in values[2:])
    how = "; ".join(dict.fromkeys(end for _, end in sent))
    return max(float(seconds) for seconds, _ in sent), f"{how}; {verified:,} elements right"


def copy_speed(size: int) -> float:
    """Bytes a second that two threads copy from warm memory to warm memory; the better of five."""
    torch.set_num_threads(1)
    buffers = [(torch.ones(size // 8), torch.ones(size // 8)) for _ in range(2)]
    best = 0.0
    for _ in range(5):
        threads = [threading.Thread(target=to.copy_, args=[from_]) for to, from_ in buffers]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, size / (time.perf_counter() - begin))
    return best


def demo(rounds: int) -> None:
    size = sum(weight.numel() * 4 for weight in make_model().parameters())
    ceiling = copy_speed(size)
    print(
        f"{size / 1e6:.0f} MB of float32 weights, rows on {RANKS} trainers, go to bfloat16 columns"
    )
    print(f"on {RANKS} engines")
    killed_in = rounds // 2
    table = []
    with started(rounds, killed_in) as (job, store):
        wait_for(job, store, ["ready/2", "ready/3"], lambda: bar(store, 1, rounds, "starting"))
        for step in range(1, rounds + 1):
            seconds, how = run_round(job, store, step, kill=step == killed_in)
            table.append((step, size, seconds, how))
            if step == killed_in:
                table[-1] = (step, size // 2, seconds, how)
                store.delete(f"ready/{VICTIM}")
                job.start(VICTIM)
                wait_for(job, store, [f"ready/{VICTIM}"])
        for worker in job.workers.values():
            worker.wait(timeout=30)
        job.check()
    print_table(table, max(ceiling, copy_speed(size)))  # the machine may have been busy at first
    print(
        f"engine {VICTIM} hung in round {killed_in}, was killed, came back and read the rounds "
        "after it;"
    )
    print("every element of every round was compared with what torch holds there")


def print_table(table: list[tuple[int, int, float, str]], ceiling: float) -> None:
    end_bar = "\r\x1b[2K" if sys.stdout.isatty() else ""
    print(f"{end_bar}this machine copies {ceiling / 1e9:.2f} GB/s from memory to memory")
    print(f"{'round':>5} {'MB':>6} {'ms':>7} {'GB/s':>6} {'of copy':>8}")
    for step, moved, seconds, how in table:
        speed = moved / seconds
        figures = f"{step:5} {moved / 1e6:6.0f} {seconds * 1e3:7.1f} {speed / 1e9:6.2f}"
        print(f"{figures} {speed / ceiling:8.0%}  {how}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="how many (default 6, at least 2)")
    demo(max(2, parser.parse_args().rounds))


if __name__ == "__main__":
    main()
