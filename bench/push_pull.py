"""Echo round trips of tensorbus.fserver against a plain TCP echo in Python.

One worker asks, a server answers with what it got; with four workers the others of each batch ask
for 64 bytes, and so do the other three clients of the TCP echo, which answers each as it comes.
Ours and the TCP echo take turns. On one host, and between two network namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import tcp_echo
import torch
from report import print_table, quantile, ratio, spread
from tensorbus import fserver

SIZES = {
    "64 B": (64, 1000),
    "14 KiB": (14 << 10, 600),
    "229 KiB": (229 << 10, 120),
    "1.75 MiB": (1792 << 10, 30),
}
ROUNDS = 15
AIMS = {("14 KiB", "1x1 shm"): 1.0, ("1.75 MiB", "1x1 shm"): 1 / 3} | {
    (size, f"4x1 {name}"): 1.0 for size in ("64 B", "14 KiB") for name in ("shm", "ucx")
}
TCP_ECHO = Path(__file__).parent / "tcp_echo.py"


def serve() -> None:
    fserver.init()
    with contextlib.suppress(Exception):  # its workers end
        while True:
            for handler, tensors, _ in fserver.get_batch():
                fserver.respond(tensors, handler)


def keep_asking() -> None:
    fserver.init()
    push, pull = torch.ones(64, dtype=torch.uint8), torch.empty(64, dtype=torch.uint8)
    with contextlib.suppress(Exception):
        while True:
            fserver.wait(fserver.push_pull([push], [1], [pull], [1]), 60_000)


def times(count: int, once: Callable[[], None]) -> list[float]:
    """Microseconds of each."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        once()
        taken.append((time.perf_counter() - start) * 1e6)
    return taken


def measure_size(connection: socket.socket, size: int, count: int) -> dict[str, object]:
    push = torch.ones(size, dtype=torch.uint8)
    pull = torch.empty(size, dtype=torch.uint8)
    head = size.to_bytes(8, "little")
    body, back = memoryview(push.numpy()), memoryview(pull.numpy())

    def ours() -> None:
        fserver.wait(fserver.push_pull([push], [1], [pull], [1]), 60_000)

    def tcp() -> None:
        sent = connection.sendmsg([head, body])
        if sent < len(head) + size:
            connection.sendall(body[sent - len(head) :])
        tcp_echo.receive(connection, back)

    medians: dict[str, list[float]] = {"ours": [], "tcp": []}
    everything: dict[str, list[float]] = {"ours": [], "tcp": []}
    for number in range(-1, ROUNDS):
        turn = [("ours", ours), ("tcp", tcp)]
        for name, once in turn if number % 2 else reversed(turn):
            taken = times(count, once)
            if name == "tcp":
                connection.sendall(tcp_echo.REST)
            if number < 0:  # warms up
                continue
            medians[name].append(quantile(taken, 0.5))
            everything[name] += taken
    return {
        "medians": medians,
        "p99": {key: quantile(all_, 0.99) for key, all_ in everything.items()},
    }


def ask() -> None:
    """Prints what it measured, as JSON."""
    torch.set_num_threads(1)
    fserver.init()
    connection = tcp_echo.connect()
    connection.sendall(tcp_echo.REST)
    print(json.dumps({name: measure_size(connection, *size) for name, size in SIZES.items()}))


ROLES = {
    "serve": serve,
    "keep_asking": keep_asking,
    "ask": ask,
}


class Hosts:
    """Two network namespaces with a link between them, gone with their holders."""

    def __init__(self) -> None:
        self.holders = [
            subprocess.Popen(["unshare", "--net", "--", "sleep", "infinity"]) for _ in range(2)
        ]
        own = os.readlink("/proc/self/ns/net")
        for holder in self.holders:
            while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
                time.sleep(0.01)
        first, second = (holder.pid for holder in self.holders)
        self.ip(f"link add tb0 netns {first} type veth peer name tb0 netns {second}")
        for host in range(2):
            for command in (
                f"address add {self.address(host)}/24 dev tb0",
                "link set lo up",
                "link set tb0 up",
            ):
                self.ip(command, host)

    @staticmethod
    def address(host: int) -> str:
        return f"10.79.0.{host + 1}"

    def enter(self, host: int) -> list[str]:
        """Words before a command. /sys is mounted anew: UCX looks for devices there."""
        inside = 'mount -t sysfs sysfs /sys && exec "$@"'
        namespace = ["nsenter", "-t", str(self.holders[host].pid), "-n"]
        return [*namespace, "unshare", "-m", "sh", "-c", inside, "sh"]

    def ip(self, command: str, host: int | None = None) -> None:
        enter = [] if host is None else ["nsenter", "-t", str(self.holders[host].pid), "-n"]
        subprocess.run([*enter, "ip", *command.split()], check=True)

    def close(self) -> None:
        for holder in self.holders:
            holder.kill()
            holder.wait()


@contextlib.contextmanager
def job(workers: int, hosts: Hosts | None) -> Iterator[subprocess.Popen[str]]:
    """The process that measures; the others end with it."""
    scheduler, server = (
        ("127.0.0.1",) * 2 if hosts is None else (hosts.address(0), hosts.address(1))
    )
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ports.append(listener.getsockname()[1])
    common = {
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": scheduler,
        "DMLC_PS_ROOT_PORT": str(ports[0]),
        "ECHO_HOST": server,
        "ECHO_PORT": str(ports[1]),
        "ECHO_CLIENTS": str(workers),
        "TENSORBUS_LOG": "error",
    }
    started = []

    def start(what: list[str | Path], host: int, **environment: str) -> subprocess.Popen[str]:
        enter = [] if hosts is None else hosts.enter(host)
        process = subprocess.Popen(
            [*enter, sys.executable, *what],
            env=os.environ | common | environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    try:
        start([__file__, "--role", "schedule"], 0, DMLC_ROLE="scheduler")
        start([TCP_ECHO, "serve"], 1)
        start([__file__, "--role", "serve"], 1, DMLC_ROLE="server")
        for rank in range(1, workers):
            own = {"DMLC_ROLE": "worker", "DMLC_NODE_RANK": str(rank)}
            start([__file__, "--role", "keep_asking"], 0, **own)
            start([TCP_ECHO, "keep_asking"], 0)
        yield start([__file__, "--role", "ask"], 0, DMLC_ROLE="worker")
    finally:
        for process in started:
            process.kill()
            process.wait()


def rows_of(name: str, workers: int, hosts: Hosts | None) -> list[dict[str, object]]:
    with job(workers, hosts) as process:
        output, _ = process.communicate(timeout=600)
    rows = []
    for size, found in json.loads(output).items():
        title = f"{workers}x1 {name}"
        ours, tcp = found["medians"]["ours"], found["medians"]["tcp"]
        aim = AIMS.get((size, title))
        compared = ratio(ours, tcp)
        rows.append(
            {
                "name": f"Python echo {size}, {title}",
                "against": "Python TCP echo",
                "tcp": spread(tcp),
                "ours": spread(ours),
                "ratio": compared,
                "tcp p99": found["p99"]["tcp"],
                "ours p99": found["p99"]["ours"],
                "aim": "" if aim is None else f"<= {aim:.2f}",
                "met": "" if aim is None else "yes" if compared.median <= aim else "no",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--role", choices=[*ROLES, "schedule"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "schedule":
        fserver.init()
        fserver.stop()
        return
    if arguments.role:
        ROLES[arguments.role]()
        return
    rows = [row for workers in (1, 4) for row in rows_of("shm", workers, None)]
    if os.geteuid() == 0:
        for workers in (1, 4):
            hosts = Hosts()
            try:
                rows += rows_of("ucx", workers, hosts)
            finally:
                hosts.close()
    print_table(
        ["what", "TCP p50 us", "ours p50 us", "ratio", "TCP p99", "ours p99", "aim", "met"],
        [
            [
                str(row["name"]),
                *(row[key].text(digits) for key, digits in (("tcp", 1), ("ours", 1), ("ratio", 2))),
                *(f"{row[key]:.0f}" for key in ("tcp p99", "ours p99")),
                *(str(row[key]) for key in ("aim", "met")),
            ]
            for row in rows
        ],
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
