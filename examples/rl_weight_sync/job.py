"""All processes of a run, and what they tell. None outlives the run, however it ends."""

from __future__ import annotations

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

HERE = Path(__file__).parent
PROGRAM = Path(sys.executable).parent / "tensorbus"
TRAINERS = 2
TORCHRUN = "trainer"  # the lane of torchrun itself
ENDING_TIME = 10.0


class Job:
    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        self._told: queue.Queue[dict[str, Any]] = queue.Queue()
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._killed: set[int] = set()  # process ids
        # Every process ends when the other end of its standard input is closed.
        self._leash, self._held = os.pipe()
        self.began = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.started: list[str] = []  # in order; a lane that came back is there twice
        self._environment = {
            key: value for key, value in os.environ.items() if key not in ("AGENT_RANK", "RANK")
        } | {
            "TENSORBUS_STORE": url,
            "TENSORBUS_STATE_DIR": os.fspath(folder),
            "REFERENCES": os.fspath(folder),
            "TMPDIR": os.fspath(folder),  # torchrun leaves files there
            "TENSORBUS_LOG": "error",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        self._agents = self._start_agents(url)

    def _start_agents(self, url: str) -> subprocess.Popen[str]:
        """Of the trainers: they keep what was published, whatever happens to the trainers."""
        agents = subprocess.Popen(
            [sys.executable, HERE / "guard.py", PROGRAM, "agent", "--store", url, "--rank=0",
             f"--world-size={TRAINERS}", f"--spawn={TRAINERS}"],
            env=self._environment, stdin=self._leash, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert agents.stdout is not None
        for _ in range(TRAINERS):
            agents.stdout.readline()  # ready rank ...
        return agents

    def start_trainers(self) -> None:
        self.start(
            TORCHRUN, None, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={TRAINERS}", "trainer.py",
        )  # fmt: skip

    def start(self, lane: str, agent_rank: int | None, *command: object) -> None:
        """Who comes back is given its predecessor's rank, and so takes its place."""
        self.note(lane, "started")
        self.started.append(lane)
        environment = self._environment | {"LANE": lane}
        if agent_rank is not None:
            environment["AGENT_RANK"] = str(agent_rank)
        with open(self._folder / f"{lane}.log", "a") as log:
            process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                cwd=HERE,
                env=environment,
                stdin=self._leash,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for run.py, who ends all others
            )
        self._running[lane] = process
        threading.Thread(target=self._listen, args=[lane, process], daemon=True).start()

    def note(self, lane: str, event: str) -> None:
        self._told.put({"lane": lane, "event": event, "end": time.monotonic()})

    def kill(self, lane: str) -> None:
        self._killed.add(self._running[lane].pid)
        self._running[lane].kill()
        self.note(lane, "killed")

    def _listen(self, lane: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # a killed one may leave half a line
                self._told.put(json.loads(line))
        code = process.wait()
        self._told.put(
            {"lane": lane, "event": "ended", "end": time.monotonic(), "code": code,
             "pid": process.pid}
        )  # fmt: skip

    def events_until_all_have_ended(self, timeout: float) -> Iterator[dict[str, Any]]:
        end = self.began + timeout
        while self._running or not self._told.empty():
            try:
                event = self._told.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise SystemExit(f"not done in {timeout:.0f} s") from None
            if event["event"] == "ended":
                self._bury(event)
            self.events.append(event)
            yield event

    def _bury(self, event: dict[str, Any]) -> None:
        lane = event["lane"]
        if self._running[lane].pid == event["pid"]:
            del self._running[lane]
        if event["code"] != 0 and event["pid"] not in self._killed:
            log = (self._folder / f"{lane}.log").read_text()
            raise SystemExit(f"{lane} ended with code {event['code']}:\n{log[-3000:]}")

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._held)
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_TIME)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._agents.wait()
        os.close(self._leash)
