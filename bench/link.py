"""Publish and pull between processes: a pull against one round of a batch of the same tensors
(L5.2), and a trainer whose steps engines must not delay (L5.3).

The trainer of L5.3 is bound to one core, three engines to another; one of them is slow. Its steps,
and the time that it spends in publish, are compared with those during which plain copies of as many
bytes run on the other core instead of the engines: there nobody holds a slot, so what publish takes
is its copy.
"""

# proves: L5.2, L5.3

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tensorbus
import torch
from report import print_table, quantile, ratio, spread
from tensorbus import Replicate, TensorBusClient
from tensorbus.kvstore import StoreServer

TENSORS = 1000
ELEMENTS = 1 << 16  # of each; float32
STEP_TENSORS = 128
STEPS = 40  # in each phase of a round
STEP_SECONDS = 0.03  # of work between two publishes
PAUSES = (0.0, 0.05, 0.4)  # of the engines between pulls: eager, at its own pace, slow


def state(count: int, *, pooled: bool = False) -> dict[str, torch.Tensor]:
    whole = torch.ones(count * ELEMENTS)
    if pooled:
        whole = tensorbus.share_(whole)
    return {f"layer{at}.w": part for at, part in enumerate(whole.split(ELEMENTS))}


def bind(core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


class Child:
    """A process of this script that does what it is told on a line, and answers with a line."""

    def __init__(self, role: str, url: str, number: int = 0) -> None:
        command = [sys.executable, __file__, "--role", role, "--url", url, "--number", str(number)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} has ended")
        return json.loads(line)

    def end(self) -> None:
        self.tell("end")
        self.process.wait(30)


def answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


# L5.2: whoever reads is timed. Both the shelf and the batch are in memory that it maps.


class Mover:
    def __init__(self, url: str, number: int) -> None:
        self.sends = number == 0
        self.client = TensorBusClient.embedded(url, number, copy_threads=1)
        names = ("trainer", "engine") if self.sends else ("engine", "trainer")
        self.tensors = state(TENSORS, pooled=self.sends)
        self.link = self.client.link(*names)
        self.client.init_pair("plain", *names, 1, (1,), [Replicate()])
        named = [(tensor, "plain", name) for name, tensor in self.tensors.items()]
        self.batch = self.client.register_tensors("batch", named)

    def do(self, order: str) -> float:
        began = time.perf_counter()
        if order == "round":
            self.batch.transfer("send" if self.sends else "recv", blocking=True)
        elif self.sends:
            self.link.publish("policy", self.tensors)
        else:
            self.link.pull("policy", self.tensors)
        return time.perf_counter() - began


def be_a_mover(url: str, number: int) -> None:
    mover = Mover(url, number)
    answer("ready")
    while (order := sys.stdin.readline().strip()) != "end":
        answer(mover.do(order))
    mover.client.close()


def pull_against_batch(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"round": [], "pull": []}
    with StoreServer("127.0.0.1", 0) as server:
        trainer, engine = (Child("mover", server.url, number) for number in range(2))
        for child in (trainer, engine):
            child.hear()
        for turn in range(-2, rounds):  # a shelf has two slots, whose pages are mapped by then
            trainer.tell("publish")
            trainer.hear()
            for order in ["round", "pull"] if turn % 2 else ["pull", "round"]:
                if order == "round":
                    trainer.tell(order)
                engine.tell(order)
                seconds = engine.hear()
                if order == "round":
                    trainer.hear()
                if turn >= 0:
                    times[order].append(seconds)
        engine.end()
        trainer.end()
    return times


# L5.3


def be_an_engine(url: str, number: int) -> None:
    """Pulls while the trainer steps, or copies as much: "pull SECONDS", "copy SECONDS TIMES"."""
    bind(1)
    client = TensorBusClient.embedded(url, 1 + number, copy_threads=1)
    link = client.link("engine" + str(number), "trainer")
    views, source = state(STEP_TENSORS), torch.ones(STEP_TENSORS * ELEMENTS)
    target = torch.ones_like(source)
    link.pull("policy", views, timeout=60)
    answer("ready")
    last = 0
    while (words := sys.stdin.readline().split()) != ["end"]:
        ends = time.perf_counter() + float(words[1])
        count = 0
        if words[0] == "pull":
            while time.perf_counter() < ends:
                newest = link.newest("policy")
                if newest > last:
                    last = link.pull("policy", views)
                    count += 1
                time.sleep(PAUSES[number] or 0.001)
        else:
            times = int(words[2])
            pause = float(words[1]) / max(times, 1)
            for at in range(times):
                target.copy_(source)
                time.sleep(max(0.0, ends - (times - at - 1) * pause - time.perf_counter()))
        answer(count)
    client.close()


def work(seconds: float) -> None:
    """Keeps the core busy, as a step does, and leaves the memory alone."""
    left = torch.ones(64, 64)
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        left = torch.mm(left, left).clamp_(0, 1)


class Trainer:
    def __init__(self, url: str) -> None:
        bind(0)
        self.client = TensorBusClient.embedded(url, 0, copy_threads=1)
        self.link = self.client.link("trainer")
        self.weights = state(STEP_TENSORS)
        self.link.publish("policy", self.weights)

    def steps(self) -> tuple[list[float], list[float]]:
        """Seconds of each step, and of these in publish."""
        seconds, publishing = [], []
        for _ in range(STEPS):
            began = time.perf_counter()
            work(STEP_SECONDS)
            worked = time.perf_counter()
            self.link.publish("policy", self.weights)
            ended = time.perf_counter()
            seconds.append(ended - began)
            publishing.append(ended - worked)
        return seconds, publishing


Phases = dict[str, list[float]]


def steps_beside_engines(rounds: int) -> tuple[Phases, Phases]:
    """Beside engines and beside copies: seconds of a step in each round, of every publish."""
    found: Phases = {"engines": [], "copies": []}
    publishes: Phases = {"engines": [], "copies": []}
    with StoreServer("127.0.0.1", 0) as server:
        trainer = Trainer(server.url)
        engines = [Child("engine", server.url, number) for number in range(len(PAUSES))]
        for engine in engines:
            engine.hear()
        lasts = STEPS * STEP_SECONDS * 2  # a first guess of how long the steps of a phase take
        for turn in range(-1, rounds):
            for engine in engines:
                engine.tell(f"pull {lasts}")
            began = time.perf_counter()
            seconds, beside_engines = trainer.steps()
            lasts = time.perf_counter() - began
            pulls = [engine.hear() for engine in engines]
            for engine, count in zip(engines, pulls, strict=True):
                engine.tell(f"copy {lasts} {count}")
            plain, beside_copies = trainer.steps()
            for engine in engines:
                engine.hear()
            if turn >= 0:
                found["engines"].append(spread(seconds).median)
                found["copies"].append(spread(plain).median)
                publishes["engines"] += beside_engines
                publishes["copies"] += beside_copies
        for engine in engines:
            engine.end()
        trainer.client.close()
    return found, publishes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--role", choices=["mover", "engine"])
    parser.add_argument("--url")
    parser.add_argument("--number", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.role is not None:
        roles = {"mover": be_a_mover, "engine": be_an_engine}
        return roles[options.role](options.url, options.number)
    rows: list[dict[str, Any]] = []
    table: list[list[str]] = []

    def add(name: str, against: str, aim: float, ours: list[float], floor: list[float]) -> None:
        found = ratio(ours, floor)
        met = "yes" if found.median <= aim else "no"
        rows.append({
            "name": name, "against": against, "unit": "ms", "floor": 1e3 * spread(floor).median,
            "ours": 1e3 * spread(ours).median, "ratio": found.median, "low": found.low,
            "high": found.high, "aim": f"<= {aim}", "met": met,
        })  # fmt: skip
        floors, own = (spread([1e3 * each for each in times]).text() for times in (floor, ours))
        table.append([name, against, floors, own, found.text(2), f"<= {aim}", met])

    times = pull_against_batch(options.rounds)
    add("pull of 1,000 x 256 KiB", "L5.2: batch round", 1.1, times["pull"], times["round"])
    found, publishes = steps_beside_engines(options.rounds)
    add("step beside 3 engines", "L5.3: beside copies", 1.1, found["engines"], found["copies"])
    print_table(["what", "against", "it, ms", "ours, ms", "ratio", "aim", "met"], table)
    print()
    table = []
    for beside, times_of in publishes.items():
        late = {"p50": quantile(times_of, 0.5), "p99": quantile(times_of, 0.99)}
        late["most"] = max(times_of)
        rows.append({"name": f"publish beside {beside}", "unit": "s", **late})
        table.append([beside, *(f"{1e3 * each:.2f}" for each in late.values())])
    print_table(["L5.3: publish beside, ms", "p50", "p99", "most"], table)
    if options.json:
        options.json.write_text(json.dumps(rows))
    return None


if __name__ == "__main__":
    main()
