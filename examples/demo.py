"""Shows weight_sync.py at work: trainers publish, engines pull, one is killed and comes back.

python examples/demo.py [--pulls 5]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorbus.kvstore import StoreServer, connect

WORKER = Path(__file__).parent / "weight_sync.py"
SIDES = {"trainer": 2, "engine": 2}
VICTIM = ("engine", 1)
PULLS_BEFORE = 3  # of the victim, until it is killed
PATIENCE = 90.0  # without news
WARM = 3  # an engine's first pulls connect, plan and touch memory for the first time
BAR = 32

Event = dict[str, Any]
Name = tuple[str, int]


class Job:
    """The processes of the demo, and what they tell. None outlives it."""

    def __init__(self, url: str) -> None:
        self._environment = os.environ | {
            "TENSORBUS_STORE": url,
            "TENSORBUS_LOG": "error",
            "ENDS_WITH_ITS_INPUT": "1",
        }
        self._workers: dict[Name, subprocess.Popen[str]] = {}
        self._told: queue.Queue[tuple[Name, Event]] = queue.Queue()

    def start(self, name: Name) -> None:
        # Who comes back has its predecessor's rank, and so takes its place.
        rank = str(name[1] + (0 if name[0] == "trainer" else SIDES["trainer"]))
        worker = subprocess.Popen(
            [sys.executable, WORKER, name[0], str(name[1])],
            env=self._environment | {"AGENT_RANK": rank},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo, which ends all others
        )
        self._workers[name] = worker
        threading.Thread(target=self._listen, args=[name, worker], daemon=True).start()

    def _listen(self, name: Name, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # a killed one may leave half a line
                self._told.put((name, json.loads(line)))
        self._told.put((name, {"event": "ended", "code": worker.wait(), "pid": worker.pid}))

    def told(self) -> Iterator[tuple[Name, Event]]:
        while self._workers:
            try:
                name, event = self._told.get(timeout=PATIENCE)
            except queue.Empty:
                raise SystemExit(f"no news for {PATIENCE:.0f} s") from None
            if event["event"] == "ended" and name in self._workers:
                self._bury(name, event)
            yield name, event

    def _bury(self, name: Name, event: Event) -> None:
        if self._workers[name].pid != event["pid"]:
            return  # it was killed, and another has its place
        del self._workers[name]
        if event["code"] != 0:
            raise SystemExit(f"{name[0]} {name[1]} ended with code {event['code']}")

    def has(self, side: str) -> bool:
        return any(name[0] == side for name in self._workers)

    def kill(self, name: Name) -> None:
        worker = self._workers.pop(name)
        worker.kill()
        worker.wait()

    def close(self) -> None:
        for name in list(self._workers):
            self.kill(name)


class Demo:
    """What has happened, and what follows from it."""

    def __init__(self, job: Job, store: Any, pulls: int) -> None:
        self._job, self._store = job, store
        self._total = PULLS_BEFORE + pulls  # of the victim
        self._is_told_to_end = False
        self.published: list[Event] = []
        self.pulls: list[Event] = []
        self.killed_after = 0  # version; 0: not yet

    def run(self) -> None:
        for side, ranks in SIDES.items():
            for rank in range(ranks):
                self._job.start((side, rank))
        for name, event in self._job.told():
            self._hear(name, event)
            self._show_bar()

    def _hear(self, name: Name, event: Event) -> None:
        if event["event"] == "published":
            self.published.append(event)
        if event["event"] == "pulled":
            self.pulls.append(event | {"number": self._number_of_pull(name)})
            self._go_on(name)
        if event["event"] == "ended" and not self._job.has("engine"):
            self._store.set("end", "")

    def _number_of_pull(self, name: Name) -> int:
        """Counted since the engine's process was started."""
        own = [pull for pull in self.pulls if pull["rank"] == name[1]]
        return len(own) + 1 - (PULLS_BEFORE if self.killed_after and name == VICTIM else 0)

    def _go_on(self, name: Name) -> None:
        done = self._pulls_of_victim()
        if name == VICTIM and done == PULLS_BEFORE and not self.killed_after:
            self._job.kill(VICTIM)
            self.killed_after = self.pulls[-1]["version"]
            self._job.start(VICTIM)
        if done >= self._total and not self._is_told_to_end:
            self._is_told_to_end = True
            self._store.set("last", str(self.published[-1]["version"] + 2))

    def _pulls_of_victim(self) -> int:
        return sum(pull["rank"] == VICTIM[1] for pull in self.pulls)

    def _show_bar(self) -> None:
        if not sys.stdout.isatty():
            return
        filled = min(BAR, round(BAR * self._pulls_of_victim() / (self._total + 1)))
        has = {pull["rank"]: pull["version"] for pull in self.pulls}
        newest = self.published[-1]["version"] if self.published else 0
        state = f"published {newest}, engines have {has.get(0, 0)} and {has.get(1, 0)}"
        print(f"\r\x1b[2K  [{'#' * filled}{'.' * (BAR - filled)}] {state}", end="", flush=True)


def print_table(demo: Demo) -> None:
    print("\r\x1b[2K" if sys.stdout.isatty() else "", end="")
    titles = ("engine", 6), ("version", 8), ("skipped", 8), ("MB", 6), ("ms", 7), ("GB/s", 6)
    print(*(f"{title:>{width}}" for title, width in (*titles, ("of copy", 8))))
    for pull in demo.pulls:
        print(table_row(pull, demo.killed_after))
    warm = [pull for pull in demo.pulls if is_measured(pull)]
    share = statistics.median(pull["copy"] / pull["seconds"] for pull in warm) if warm else 0.0
    print(f"a warm pull has {share:.0%} of the speed of a plain copy: median of {len(warm)}, each")
    print("measured beside a copy of as many bytes in one thread of the same process")
    inside = [event["seconds"] * 1e3 for event in demo.published if event["version"] > 2]
    print(f"publish took {statistics.median(inside):.1f} ms (most: {max(inside):.1f})")


def is_measured(pull: Event) -> bool:
    return bool(pull["ready"]) and pull["number"] >= WARM


def table_row(pull: Event, killed_after: int) -> str:
    size, seconds = pull["bytes"], pull["seconds"]
    row = f"{pull['rank']:6} {pull['version']:8} {pull['skipped']:8} "
    row += f"{size / 1e6:6.0f} {seconds * 1e3:7.1f} "
    if is_measured(pull):
        row += f"{size / seconds / 1e9:6.2f} {pull['copy'] / seconds:8.0%}"
    elif pull["number"] == 1:
        row += f"{'':6} {'':8}  the first: connects, plans, touches the memory"
    elif pull["ready"]:
        row += f"{size / seconds / 1e9:6.2f} {pull['copy'] / seconds:8.0%}  not warm yet"
    else:
        row += f"{'':6} {'':8}  waited for a newer version"
    is_last = pull["rank"] == VICTIM[1] and pull["version"] == killed_after
    return f"{row}  then it was killed" if is_last else row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pulls", type=int, default=5, help="of the engine that came back")
    options = parser.parse_args()
    print("two trainer ranks (float32, rows) publish after every step; an engine of two ranks")
    print("(bfloat16, fused, tensor parallel) pulls the newest version when it likes")
    with (
        StoreServer(port=0) as server,
        connect(server.url) as store,
        contextlib.closing(Job(server.url)) as job,
    ):
        demo = Demo(job, store, max(1, options.pulls))
        try:
            demo.run()
        except KeyboardInterrupt:
            sys.exit(130)
    print_table(demo)
    print(f"engine {VICTIM[1]} was killed, came back and pulled the current version at once;")
    print("every element of every pull was compared with what training gives there")


if __name__ == "__main__":
    main()
