"""Trainers that learn and engines that generate, one of which is killed and comes back.

python examples/rl_weight_sync/run.py [--versions 8] [--picture timeline.svg]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorbus.kvstore import KVStore, StoreServer, connect
from timeline import draw

HERE = Path(__file__).parent
LANES = [(0, "trainer 0"), (1, "trainer 1"), (2, "solo"), (3, "duo 0"), (4, "duo 1")]
SOLO = 2
PATIENCE = 300.0  # it takes less than two minutes on two cores of their own


class Job:
    """All processes of the run, and what they tell."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._told: queue.Queue[dict[str, Any]] = queue.Queue()
        self.running: dict[int, subprocess.Popen[str]] = {}
        self.events: list[dict[str, Any]] = []

    def start(self, agent_rank: int, rank: int, *command: object) -> None:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=HERE,
            env=os.environ
            | {
                "TENSORBUS_STORE": self._url,
                "AGENT_RANK": str(agent_rank),
                "RANK": str(rank),
                "STARTED": str(sum(event["event"] == "started" for event in self.events)),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running[agent_rank] = process
        threading.Thread(target=self._listen, args=[agent_rank, process], daemon=True).start()

    def note(self, rank: int, event: str) -> None:
        self.show({"time": time.time(), "rank": rank, "event": event})

    def show(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        name = dict(LANES)[event["rank"]]
        more = {k: v for k, v in event.items() if k not in ("time", "rank", "event")}
        print(f"{name:>9}  {event['event']:<9}", *(f"{k}={v!r}" for k, v in more.items()))

    def _listen(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                self._told.put(json.loads(line))
        self._told.put(
            {"time": time.time(), "rank": rank, "event": "ended", "code": process.wait()}
        )

    def told(self, timeout: float) -> Iterator[dict[str, Any]]:
        """What is told until all have ended."""
        end = time.monotonic() + timeout
        while self.running:
            try:
                event = self._told.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise SystemExit("it takes too long") from None
            if event["event"] != "ended":
                self.show(event)
            elif self.running[event["rank"]].poll() is not None:
                process = self.running.pop(event["rank"])
                if process.returncode not in (0, -signal.SIGKILL):
                    raise SystemExit(f"{dict(LANES)[event['rank']]} failed: {process.returncode}")
            yield event

    def kill(self, rank: int) -> None:
        self.running[rank].kill()
        self.note(rank, "killed")

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--versions", type=int, default=8)
    parser.add_argument("--picture", type=Path, default=Path("timeline.svg"))
    options = parser.parse_args()
    with StoreServer("127.0.0.1", 0) as server, connect(server.url) as store:
        job = Job(server.url)
        try:
            run(job, store, options.versions)
        finally:
            job.close()
    options.picture.write_text(draw(LANES, job.events))
    losses = [event["loss"] for event in job.events if event["event"] == "trained"]
    print(f"the loss fell from {losses[0]} to {losses[-1]}; the timeline is in {options.picture}")


def run(job: Job, store: KVStore, versions: int) -> None:
    for rank in range(2):
        job.start(rank, rank, "trainer.py")
        job.start(3 + rank, rank, "engine.py", "duo", 2)
    job.start(SOLO, 0, "engine.py", "solo", 1)
    taken: list[int] = []  # by the solo engine since it last began
    back = False
    for event in job.told(PATIENCE):
        if event["rank"] != SOLO:
            continue
        if event["event"] == "ended" and event["code"] == -signal.SIGKILL:
            back = True
            taken.clear()
            job.note(SOLO, "started")
            job.start(SOLO, 0, "engine.py", "solo", 1)
        elif event["event"] == "received":
            taken.append(event["version"])
        if len(taken) == 2 and not back and event["event"] == "generated":
            job.kill(SOLO)
        if len(taken) == 3 and back and event["event"] == "received":
            store.set("last", str(max(versions, event["version"] + 2)))


if __name__ == "__main__":
    main()
