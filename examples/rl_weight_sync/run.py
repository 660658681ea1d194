"""A trainer that waits for nobody, and engines that are slow, late, or killed and come back.

python examples/rl_weight_sync/run.py [--versions 40] [--picture timeline.svg]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from job import Job
from report import print_line, print_table
from tensorbus.kvstore import KVStore, StoreServer, connect
from timeline import draw

PATIENCE = 300.0  # it takes less than a minute on two cores of their own
# Ranks of each engine, and how many times the letters of the others it generates with a version.
ENGINES = {"duo": (2, 1), "slow": (1, 8), "late": (1, 1), "solo": (1, 1)}
LANES = ["trainer 0", "trainer 1", "duo 0", "duo 1", "slow", "late", "solo"]
VICTIM = "solo"


class Story:
    """What happens when, by what the processes tell."""

    def __init__(self, job: Job, store: KVStore, versions: int, letters: int) -> None:
        self._job, self._store = job, store
        self._versions, self._letters = versions, letters
        self._published = 0
        self._served: dict[str, int] = dict.fromkeys(LANES, 0)  # since the lane last began
        self._killed_at = 0
        self._is_told_to_end = False

    def begin(self) -> None:
        self._job.start_trainers()
        for name in ("duo", "slow", VICTIM):
            self._start(name)

    def hear(self, event: dict[str, Any]) -> None:
        lane = event["lane"]
        if event["event"] == "publish":
            self._published = max(self._published, event["version"])
        if event["event"] == "generate":
            self._served[lane] += 1
        self._go_on()

    def _go_on(self) -> None:
        job = self._job
        if "late" not in job.started and self._served["slow"] >= 1:
            self._start("late")
        if not self._killed_at and self._served[VICTIM] >= 3:
            job.kill(VICTIM)
            self._killed_at = self._published
            self._served[VICTIM] = 0
        is_back = job.started.count(VICTIM) == 2
        if self._killed_at and not is_back and self._published >= self._killed_at + 3:
            self._start(VICTIM)
        if is_back and min(self._served[name] for name in LANES[2:]) >= 2:
            self._end()

    def _end(self) -> None:
        """Once: two more versions, or as many as were asked for."""
        if not self._is_told_to_end:
            self._store.set("last", str(max(self._versions, self._published + 2)))
            self._is_told_to_end = True

    def _start(self, name: str) -> None:
        size, times = ENGINES[name]
        for rank in range(size):
            lane = f"{name} {rank}" if size > 1 else name
            self._job.start(
                lane, LANES.index(lane), "engine.py", name, rank, size, times * self._letters
            )


def run(versions: int, letters: int, folder: Path) -> list[dict[str, Any]]:
    with (
        StoreServer("127.0.0.1", 0) as server,
        connect(server.url) as store,
        Job(server.url, folder) as job,
    ):
        story = Story(job, store, versions, letters)
        story.begin()
        for event in job.events_until_all_have_ended(PATIENCE):
            print_line(event, job.began)
            story.hear(event)
        return job.events


def end_by_signal(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=40, help="at least so many (default 40)")
    parser.add_argument("--letters", type=int, default=26, help="generated with a version")
    parser.add_argument("--picture", type=Path, default=Path("timeline.svg"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_by_signal)  # as Ctrl-C: nothing is left behind
    with tempfile.TemporaryDirectory() as folder:
        try:
            events = run(options.versions, options.letters, Path(folder))
        except KeyboardInterrupt:
            sys.exit(130)
    print_table(events, LANES)
    options.picture.write_text(draw(LANES, events))
    print(f"the timeline is in {os.fspath(options.picture)}")


if __name__ == "__main__":
    main()
