"""tensorbus status: who has which version, and who waits for whom."""

import json
import logging
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorbus
from jobs import WORKER, Job, status_of, until
from processes import PROGRAM, Start, StartServer
from tensorbus.kvstore import StoreServer


def row(status: dict, rank: int) -> dict:
    return next(each for each in status["rows"] if each["rank"] == rank)


@pytest.mark.proves("O4.1")
def test_a_rank_that_does_not_pull_is_named_by_who_waits(start_job: Callable[..., Job]):
    job = start_job()
    job.wait_for_version(3)
    status = until(
        lambda: (
            (found := job.status())
            and len(found["rows"]) == 5
            and all(each["version"] >= 1 for each in found["rows"])
            and found
        ),
        "all five ranks",
    )
    assert {(each["side"], each["rank"]) for each in status["rows"]} == {
        ("trainer", 0), ("trainer", 1), ("engine", 2), ("engine", 3), ("engine", 4),
    }  # fmt: skip
    assert all(row(status, rank)["from"] == [0, 1] for rank in (2, 3, 4))
    job.pause(4)
    waiting = until(
        lambda: (
            (found := job.status())
            and all(row(found, rank)["awaited"] == [4] for rank in (2, 3))
            and found
        ),
        "ranks 2 and 3 to wait for rank 4",
    )
    assert "for rank 4" in row(waiting, 2)["doing"]
    named = until(
        lambda: [each["text"] for each in job.status()["problems"] if each["ranks"] == [4]],
        "rank 4 to be blamed",
    )
    assert "rank 4 is waited for: ranks 2, 3 have waited" in named[0]
    table = subprocess.run(
        [str(PROGRAM), "status", "--store", job.server.url], capture_output=True, text=True
    ).stdout
    assert "! rank 4" in table
    assert max(len(line) for line in table.splitlines() if not line.startswith("!")) <= 80
    job.resume(4)
    until(
        lambda: not [each for each in job.status()["problems"] if "waited" in each["text"]],
        "nobody to wait any more",
    )


@pytest.mark.proves("O4.1")
@pytest.mark.parametrize("store", ["tensorbus", "etcd"])
def test_a_stopped_process_is_waited_for_and_then_gone(
    start_job: Callable[..., Job],
    start_program: Start,
    store: str,
    unique: str,
    request: pytest.FixtureRequest,
):
    server = None
    if store == "etcd":
        server = SimpleNamespace(url=f"etcd://127.0.0.1:{request.getfixturevalue('etcd')}")
    job = start_job(server=server, env={"TENSORBUS_NAMESPACE": unique})
    job.wait_for_version(2)
    # One that looks all the time: its lease lapses after five seconds.
    where = ["--store", job.server.url, "--namespace", unique]
    watching = start_program(str(PROGRAM), "status", "--watch", "--json", "--every", "0.1", *where)

    def is_waited_for(status: dict) -> bool:
        return any(each["awaited"] == [1] for each in status["rows"])

    def is_about_to_lapse(status: dict) -> bool:
        return any(
            each["ranks"] == [1] and "does not renew its lease" in each["text"]
            for each in status["problems"]
        )

    def is_gone(status: dict) -> bool:
        return 1 not in {each["rank"] for each in status["rows"]}

    until(lambda: not is_gone(json.loads(watching.line())), "rank 1 to be there")
    job.ranks[1].signal(signal.SIGSTOP)
    try:
        seen: list[dict] = []
        while not seen or not is_gone(seen[-1]):
            seen.append(json.loads(watching.line()))
        assert any(map(is_waited_for, seen))
        assert any(map(is_about_to_lapse, seen))
    finally:
        job.ranks[1].signal(signal.SIGCONT)


@pytest.mark.proves("O4.1")
def test_watch_survives_a_restart_of_the_store(start_job: Callable[..., Job]):
    job = start_job(engines=1)
    job.wait_for_version(2)
    leader, follower = pty.openpty()
    watching = subprocess.Popen(
        [str(PROGRAM), "status", "--watch", "--store", job.server.url,
         "--every", "0.2", "--timeout", "1"],
        stdout=follower, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(follower)
    try:
        seen = b""

        def read_until(words: bytes) -> bool:
            nonlocal seen
            seen += os.read(leader, 65536)
            return words in seen

        until(lambda: read_until(b"trainer"), "the table")
        assert b"\x1b[H" in seen  # it repaints in place
        job.server.kill()
        until(lambda: read_until(b"does not answer"), "it to say so")
        job.server.start_again()
        seen = b""
        until(lambda: read_until(b"engine"), "the table again", 90)
    finally:
        watching.kill()
        watching.wait()
        os.close(leader)


@pytest.mark.proves("O4.1")
def test_records_are_small_and_readable(start_job: Callable[..., Job]):
    job = start_job(engines=1)
    job.wait_for_version(2)
    command = [str(PROGRAM), "kv", "get", "--store", job.server.url, "--component", "status"]
    text = until(
        lambda: (
            subprocess.run(
                [*command, "agents/0", "--readable"], capture_output=True, text=True
            ).stdout
        ),
        "the record",
    )
    assert "policy" in text
    raw = subprocess.run([*command, "agents/0"], capture_output=True).stdout
    assert 0 < len(raw) <= 1024


@pytest.mark.proves("O4.1")
def test_who_waits_for_ranks_that_have_not_come_says_so(
    start_python: Start, start_server: StartServer, tmp_path: Path
):
    server = start_server()
    (tmp_path / "period").write_text("1")
    trainer = start_python(
        WORKER, server.url, "trainer", "engine", 2, 0, 100, tmp_path,
        env={"TENSORBUS_STATUS_PERIOD": "0.2"},
    )  # fmt: skip
    assert trainer.line() == "ready"
    problem = until(lambda: status_of(server.url)["problems"], "the trainer to wait")[0]
    assert problem["text"].startswith("rank 0: ")
    assert "waits for" in problem["text"]
    assert "rank" in problem["text"].removeprefix("rank 0: ")


@pytest.mark.proves("O4.1")
def test_a_period_of_zero_turns_it_off(start_job: Callable[..., Job]):
    job = start_job(engines=1, env={"TENSORBUS_STATUS_PERIOD": "0"})
    job.wait_for_version(2)
    assert job.status()["rows"] == []


def test_which_store_is_asked_for():
    env = {name: text for name, text in os.environ.items() if name != "TENSORBUS_STORE"}
    done = subprocess.run([str(PROGRAM), "status"], capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert "TENSORBUS_STORE" in done.stderr


@pytest.mark.proves("O4.4")
def test_publishes_and_pulls_are_told_at_most_once_a_second(
    store_server: StoreServer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "tensorbus")
    trainer = tensorbus.TensorBusClient.embedded(store_server.url, rank=0, namespace="lines")
    engine = tensorbus.TensorBusClient.embedded(store_server.url, rank=1, namespace="lines")
    state = {"w": np.ones(250_000, np.float32)}
    publisher, puller = trainer.link("trainer"), engine.link("engine", "trainer")
    last = None
    begin = time.monotonic()
    rounds = 0
    while time.monotonic() < begin + 1.5:
        publisher.publish("policy", state)
        last = puller.pull("policy", state, newer_than=last)
        rounds += 1
    engine.close()
    trainer.close()
    took = time.monotonic() - begin

    def lines(words: str) -> list[str]:
        return [each.getMessage() for each in caplog.records if words in each.getMessage()]

    until(lambda: lines("pull of"), "a line")
    assert rounds > 5
    assert 1 <= len(lines('rank 1 (engine): pull of "policy" version')) <= took + 1
    assert 1 <= len(lines('rank 0 (trainer): publish of "policy" version')) <= took + 1
    pulled = lines("pull of")[0]
    assert "0.001 GB at " in pulled
    assert " GB/s (mapped); " in pulled
    assert re.search(r"[;,] read \d+\.\d ms", pulled), pulled
    assert "slowest rank 0" in pulled
