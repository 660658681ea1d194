"""Pulls of what has changed against pulls of everything: on one host, and between two whose link is
as fast as memory, 10 and 1 Gb/s (as root: network namespaces).

A trainer publishes bfloat16 of float32 weights of which a share has changed. Two engines pull every
version in turns, one of them with deltas; times are those of the pulls. ``auto`` decides for itself
and must nowhere be slower than 0.95 of dense; ``always`` shows what patches do where they do not
pay.
A tiny model trained with Adam says which shares are real.
"""

# proves: E1.6, E3.3

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from report import Spread, print_table, ratio, spread
from tensorbus import TensorBusClient
from tensorbus.kvstore import StoreServer

TENSORS = 16
ELEMENTS = 1 << 20  # of each
SHARES = (0.0001, 0.001, 0.01, 0.1, 0.5, 1.0)
ADDRESSES = ("10.79.0.1", "10.79.0.2")
HOLD = "mount -t sysfs sysfs /sys && echo ready && exec sleep infinity"
RATES = {"unthrottled": None, "10 Gb/s": "10gbit", "1 Gb/s": "1gbit"}
# Of a patch for 1 % against all, as C13 of the research has them.
AIMS = {"unthrottled": 1.2, "10 Gb/s": 3.0, "1 Gb/s": 20.0}
LAG = 8


class Child:
    """A process of this script that does what it is told on a line, and answers with a line."""

    def __init__(self, before: list[str], role: str, url: str, number: int, bind: str) -> None:
        command = [
            *before, sys.executable, __file__, "--role", role, "--url", url,
            "--number", str(number), "--bind", bind,
        ]  # fmt: skip
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.hear()

    def ask(self, order: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} has ended")
        return json.loads(line)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def be_a_trainer(client: TensorBusClient) -> None:
    """ "publish SHARE MODE": seconds."""
    link = client.link("trainer")
    weights = {f"layer{at}.w": torch.full((ELEMENTS,), 0.02) for at in range(TENSORS)}
    dice = torch.Generator().manual_seed(1)
    for line in sys.stdin:
        _, share, mode = line.split()
        for tensor in weights.values():
            # One in the last place of bfloat16.
            chosen = torch.rand(ELEMENTS, generator=dice) < float(share)
            tensor.view(torch.int32)[chosen] ^= 1 << 16
        answer(timed(lambda m=mode: link.publish("policy", weights, dtype=torch.bfloat16, delta=m)))


def be_an_engine(client: TensorBusClient, number: int) -> None:
    """ "pull", "fetch": seconds of the pull or of both its parts, and what was pulled."""
    link = client.link(f"engine{number}", "trainer", delta=number == 1)
    served = {f"layer{at}.w": torch.zeros(ELEMENTS, dtype=torch.bfloat16) for at in range(TENSORS)}
    for line in sys.stdin:
        told: dict[str, Any] = {}
        if line.strip() == "fetch":
            updates = []
            told["fetch"] = timed(lambda u=updates: u.append(link.fetch("policy", served)))
            told["apply"] = timed(updates[0].apply)
        else:
            told["pull"] = timed(lambda: link.pull("policy", served))
        if number == 1:
            stats = link.stats("policy")
            told |= {"why": stats.why, "bytes": stats.patch_bytes, "changed": stats.changed}
        told["sum"] = sum(int(each.view(torch.int16).sum()) for each in served.values())
        answer(told)


class Hosts:
    """Two namespaces and the link between them."""

    def __init__(self) -> None:
        self.holders = [
            subprocess.Popen(
                ["unshare", "--net", "--mount", "sh", "-c", HOLD], stdout=subprocess.PIPE, text=True
            )
            for _ in ADDRESSES
        ]
        for holder in self.holders:
            assert holder.stdout is not None
            holder.stdout.readline()
        self.run(0, f"ip link add tb0 type veth peer name tb0 netns {self.holders[1].pid}")
        for host, address in enumerate(ADDRESSES):
            self.run(host, f"ip address add {address}/24 dev tb0")
            self.run(host, "ip link set lo up")
            self.run(host, "ip link set tb0 up")
        time.sleep(2)  # UCX passes over a device whose link is not up yet

    def on(self, host: int) -> list[str]:
        return ["nsenter", "--target", str(self.holders[host].pid), "--net", "--mount"]

    def run(self, host: int, command: str) -> None:
        subprocess.run([*self.on(host), *command.split()], check=True)

    def limit(self, rate: str | None) -> None:
        """What the trainer's host sends."""
        subprocess.run(
            [*self.on(0), "tc", "qdisc", "del", "dev", "tb0", "root"],
            check=False,
            capture_output=True,
        )
        if rate is not None:
            self.run(0, f"tc qdisc add dev tb0 root tbf rate {rate} burst 4mb latency 100ms")

    def close(self) -> None:
        for holder in self.holders:
            holder.kill()
            holder.wait()


class Job:
    """A trainer, an engine without deltas (0) and one with (1)."""

    def __init__(self, hosts: Hosts | None) -> None:
        before = [[], []] if hosts is None else [hosts.on(0), hosts.on(1)]
        addresses = ("", "") if hosts is None else ADDRESSES
        self.store: subprocess.Popen[str] | None = None
        self.server: StoreServer | None = None
        if hosts is None:
            self.server = StoreServer("127.0.0.1", 0)
            url = self.server.url
        else:
            program = str(Path(sys.executable).parent / "tensorbus")
            self.store = subprocess.Popen(
                [*before[0], program, "store", "--host", ADDRESSES[0], "--port", "0"],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert self.store.stdout is not None
            url = self.store.stdout.readline().split()[1]
        self.trainer = Child(before[0], "trainer", url, 9, addresses[0])
        self.engines = [Child(before[1], "engine", url, at, addresses[1]) for at in range(2)]

    def close(self) -> None:
        for child in (*self.engines, self.trainer):
            child.end()
        if self.server is not None:
            self.server.close()
        if self.store is not None:
            self.store.terminate()
            self.store.wait()


@contextmanager
def job(hosts: Hosts | None) -> Iterator[Job]:
    made = Job(hosts)
    try:
        yield made
    finally:
        made.close()


class Rows:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self, where: str, what: str, found: Spread, aim: float | None, told: dict[str, Any],
        *, least: bool = True,
    ) -> None:  # fmt: skip
        met = aim is None or (found.median >= aim if least else found.median <= aim)
        self.rows.append({
            "name": what, "where": where, "ratio": found.median, "low": found.low,
            "high": found.high, "aim": "" if aim is None else f"{'>=' if least else '<='} {aim:g}",
            "met": "" if aim is None else "yes" if met else "no", **told,
        })  # fmt: skip

    def table(self) -> None:
        print_table(
            ["what", "where", "ratio (quartiles)", "aim", "met", "how"],
            [
                [
                    row["name"], row["where"],
                    Spread(row["ratio"], row["low"], row["high"]).text(2), row["aim"], row["met"],
                    str(row.get("why", "")),
                ]
                for row in self.rows
            ],
        )  # fmt: skip


def measure(made: Job, share: float, mode: str, rounds: int) -> dict[str, Any]:
    """Seconds of pulls with deltas and without, of the same versions, in turns."""
    dense: list[float] = []
    own: list[float] = []
    publishes: list[float] = []
    told: dict[str, Any] = {}
    for turn in range(-3, rounds):
        publish = made.trainer.ask(f"publish {share} {mode}")
        got: dict[int, Any] = {}
        for at in (0, 1) if turn % 2 else (1, 0):
            got[at] = made.engines[at].ask("pull")
        assert got[0]["sum"] == got[1]["sum"]
        if turn < 0:
            continue
        publishes.append(publish)
        dense.append(got[0]["pull"])
        own.append(got[1]["pull"])
        told = got[1]
    return {
        "ratio": ratio(dense, own), "why": told["why"], "bytes": told["bytes"],
        "changed": told["changed"], "dense_ms": 1e3 * spread(dense).median,
        "ours_ms": 1e3 * spread(own).median, "publish_ms": 1e3 * spread(publishes).median,
    }  # fmt: skip


def pulls(where: str, made: Job, rows: Rows, rounds: int) -> None:
    for share in SHARES:
        for mode in ("auto", "always"):
            found = measure(made, share, mode, rounds)
            aim = 0.95 if mode == "auto" else None
            if mode == "always" and share == 0.01 and where in AIMS:
                aim = AIMS[where]
            rows.add(where, f"dense / {mode}, {100 * share:g} %", found.pop("ratio"), aim, found)


def pauses(made: Job, rows: Rows, rounds: int) -> None:
    """While an engine stands still: apply against a dense pull."""
    for share in (0.001, 0.01):
        apply: list[float] = []
        dense: list[float] = []
        for turn in range(-2, rounds):
            made.trainer.ask(f"publish {share} always")
            fetched, pulled = made.engines[1].ask("fetch"), made.engines[0].ask("pull")
            if turn >= 0:
                apply.append(fetched["apply"])
                dense.append(pulled["pull"])
        rows.add(
            "one host", f"apply / dense pull, {100 * share:g} %", ratio(apply, dense),
            0.3 if share == 0.01 else None, {"why": fetched["why"]}, least=False,
        )  # fmt: skip


def laggards(made: Job, rows: Rows, rounds: int) -> None:
    """Some versions late, against one version late: time by bytes."""
    late: list[float] = []
    timely: list[float] = []
    bytes_of: dict[int, int] = {}
    for turn in range(-1, rounds):
        for behind, times in ((1, timely), (LAG, late)):
            for _ in range(behind):
                made.trainer.ask("publish 0.001 always")
            got = made.engines[1].ask("pull")
            bytes_of[behind] = got["bytes"]
            if turn >= 0:
                times.append(got["pull"])
    more = bytes_of[LAG] / bytes_of[1]
    found = ratio(late, timely)
    rows.add(
        "one host", f"{LAG} versions late / one late, by bytes",
        Spread(found.median / more, found.low / more, found.high / more), 1.1, {"why": "patch"},
        least=False,
    )  # fmt: skip


def comparing(made: Job, rows: Rows, rounds: int) -> None:
    """What a publish takes with a comparison against one without."""
    without: list[float] = []
    compared: list[float] = []
    for turn in range(-2, rounds):
        for mode, times in (("off", without), ("always", compared)):
            made.trainer.ask(f"publish 0.01 {mode}")
            made.engines[1].ask("pull")
            seconds = made.trainer.ask(f"publish 0.01 {mode}")
            made.engines[1].ask("pull")
            if turn >= 0:
                times.append(seconds)
    rows.add("one host", "publish, compared / not", ratio(compared, without), None, {})


def adam(rows: Rows) -> None:
    """Which share of a real model's bfloat16 weights a step changes."""
    for rate in (1e-6, 1e-5):
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256)
        )
        for each in model.parameters():
            torch.nn.init.normal_(each, 0, 0.02)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        inputs, wanted = torch.randn(64, 256), torch.randn(64, 256)
        before = [each.detach().to(torch.bfloat16) for each in model.parameters()]
        for step in range(1, 33):
            optimizer.zero_grad()
            noise = 0.5 * torch.randn_like(inputs)
            torch.nn.functional.mse_loss(model(inputs + noise), wanted).backward()
            optimizer.step()
            after = [each.detach().to(torch.bfloat16) for each in model.parameters()]
            changed = sum(int((a != b).sum()) for a, b in zip(after, before, strict=True))
            share = changed / sum(each.numel() for each in after)
            if step in (1, 8, 32):
                rows.add(
                    "a tiny model", f"changed by Adam, lr {rate:g}, step {step}",
                    Spread(share, share, share), None, {},
                )  # fmt: skip
            before = after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--role", choices=["trainer", "engine"])
    parser.add_argument("--url")
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--bind", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.role is not None:
        client = TensorBusClient.embedded(
            options.url, options.number, bind=options.bind or None, copy_threads=1
        )
        answer("ready")
        if options.role == "trainer":
            be_a_trainer(client)
        else:
            be_an_engine(client, options.number)
        return client.close()
    rows = Rows()
    adam(rows)
    with job(None) as made:
        pulls("one host", made, rows, options.rounds)
        pauses(made, rows, options.rounds)
        laggards(made, rows, options.rounds)
        comparing(made, rows, options.rounds)
    if os.geteuid() == 0:
        hosts = Hosts()
        try:
            for where, rate in RATES.items():
                hosts.limit(rate)
                with job(hosts) as made:
                    pulls(where, made, rows, options.rounds)
        finally:
            hosts.close()
    else:
        print("network namespaces need root: no rows between hosts")
    rows.table()
    if options.json:
        options.json.write_text(json.dumps(rows.rows, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
