"""A job to look at: trainers that publish and engines that pull, a process each."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from processes import PROGRAM, Process, ServerProcess, Start, free_port

# Its arguments: store, side, other side, ranks of the side, rank, elements, a folder. A file
# "pause.RANK" in the folder keeps the rank from its next call; "period" has seconds between two
# publishes, "late.RANK" those that this rank takes for itself before each pull.
WORKER = """
import pathlib, sys, time
import numpy as np
import tensorbus

store, side, other, world, rank, elements, folder = sys.argv[1:]
rank, elements, folder = int(rank), int(elements), pathlib.Path(folder)
client = tensorbus.TensorBusClient.embedded(store, rank=rank)
sends = side == "trainer"
link = client.link(side, None if sends else other, int(world))
names = [f"w{rank}"] if sends else ["w0", "w1"]
state = {name: np.zeros(elements, np.float32) for name in names}
late = folder / f"late.{rank}"
late = float(late.read_text()) if late.exists() else 0
last = None
print("ready", flush=True)
while True:
    while (folder / f"pause.{rank}").exists():
        time.sleep(0.02)
    try:
        if sends:
            for tensor in state.values():
                tensor += 1
            last = link.publish("policy", state, timeout=120)
            time.sleep(float((folder / "period").read_text()))
        else:
            time.sleep(late)
            last = link.pull("policy", state, newer_than=last, timeout=120)
            assert len({tensor[at] for tensor in state.values() for at in (0, -1)}) == 1
    except (tensorbus.PeerLostError, tensorbus.WithdrawnError, TimeoutError) as error:
        print(f"again: {error}", flush=True)
        continue
    print(f"version {last}", flush=True)
"""


REQUESTS = 20  # of each worker
# Of a job of push-pull: it stays until there is the file that its argument names.
PUSH_PULL = f"""
import os, pathlib, sys, time
import torch
import fserver_lib as f

role = os.environ["DMLC_ROLE"]
f.init()
if role == "worker":
    push, pull = torch.rand(4), torch.zeros(4)
    for _ in range({REQUESTS}):
        f.wait(f.push_pull([push], [1], [pull], [0]))
elif role == "server":
    answered = 0
    while answered < {REQUESTS}:
        for handler, tensors, keys in f.get_batch():
            f.respond([2 * tensors[0]], handler)
            answered += 1
if role != "scheduler":
    print("done", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
f.stop()
"""


class Job:
    """Two trainers, ranks 0 and 1, and engines from rank 2 on."""

    def __init__(
        self,
        start_python: Start,
        server: ServerProcess,
        folder: Path,
        *,
        engines: int = 3,
        elements: int = 10_000,
        period: float = 0.1,
        env: dict[str, str] | None = None,
        late: dict[int, float] | None = None,
    ) -> None:
        self._start = start_python
        self.server = server
        self.folder = folder
        self.engines = engines
        self.elements = elements
        self.env = {"TENSORBUS_STATUS_PERIOD": "0.2"} | (env or {})
        (folder / "period").write_text(str(period))
        for rank, seconds in (late or {}).items():
            (folder / f"late.{rank}").write_text(str(seconds))
        self.ranks: dict[int, Process] = {}
        for rank in range(2 + engines):
            self.start(rank)
        for process in self.ranks.values():
            assert process.line() == "ready"

    def start(self, rank: int) -> Process:
        side, other, world = (
            ("trainer", "engine", 2) if rank < 2 else ("engine", "trainer", self.engines)
        )
        env = {name: text.replace("{rank}", str(rank)) for name, text in self.env.items()}
        self.ranks[rank] = self._start(
            WORKER, self.server.url, side, other, world, rank, self.elements, self.folder, env=env
        )
        return self.ranks[rank]

    def pause(self, rank: int) -> None:
        (self.folder / f"pause.{rank}").touch()

    def resume(self, rank: int) -> None:
        (self.folder / f"pause.{rank}").unlink()

    def wait_for_version(self, version: int, timeout: float = 60.0) -> None:
        """Until every rank has this one or a later one."""
        for process in self.ranks.values():
            end = time.monotonic() + timeout
            while True:
                kind, _, number = process.line(max(0.1, end - time.monotonic())).partition(" ")
                if kind == "version" and int(number) >= version:
                    break

    def status(self) -> dict[str, Any]:
        return status_of(self.server.url)


def status_of(store: str) -> dict[str, Any]:
    command = [str(PROGRAM), "status", "--store", store, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def start_prometheus(
    start_program: Start, pages: Iterable[str], folder: Path, rules: Path | None = None
) -> str:
    """Its address; it scrapes the pages every second."""
    targets = sorted(urllib.parse.urlparse(page).netloc for page in pages)
    configuration = {
        "global": {"scrape_interval": "1s"},
        "rule_files": [] if rules is None else [str(rules)],
        "scrape_configs": [{"job_name": "tensorbus", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    port = free_port()
    start_program(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    return f"http://127.0.0.1:{port}"


def get(url: str, accept: str = "*/*", timeout: float = 30.0) -> str:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        text: str = answer.read().decode()
        return text


def until(look: Callable[[], Any], what: str, timeout: float = 60.0) -> Any:
    """What ``look`` returns once it is true."""
    end = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)
