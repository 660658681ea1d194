"""Requests of push-pull: counted, and on a timeline from the worker to the server."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from jobs import PUSH_PULL, REQUESTS, get, until
from processes import PROGRAM, Start, free_ports


@pytest.mark.timeout(180)
@pytest.mark.proves("O1.2", "O2.1", "O3.1")
def test_requests_are_on_pages_and_timelines(start_program: Start, tmp_path: Path):
    (tmp_path / "script.py").write_text(PUSH_PULL)
    port = free_ports(2)
    job = start_program(
        str(PROGRAM), "launch", "--metrics", f"127.0.0.1:{port}",
        str(tmp_path / "script.py"), str(tmp_path / "go"),
        env={"TENSORBUS_TRACE": str(tmp_path / "trace"), "TENSORBUS_LOG": "error"},
    )  # fmt: skip
    assert {job.line(120), job.line(120)} == {"[worker 0] done", "[server 0] done"}
    for page, side, work in ((port, "server", "answer"), (port + 1, "worker", "request")):
        labels = f'side="{side}",rank="0",operation="{work}"'
        counted = f'tensorbus_operations_total{{{labels},outcome="ok"}} {REQUESTS}'
        until(
            lambda page=page, counted=counted: (
                counted in get(f"http://127.0.0.1:{page}/metrics").splitlines()
            ),
            f"{side} to have counted its requests",
        )
    (tmp_path / "go").touch()
    assert job.wait(60) == 0

    merged = subprocess.run(
        [str(PROGRAM), "trace", "merge", str(tmp_path / "trace")],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    events = json.loads(merged)["traceEvents"]
    kinds = Counter(event.get("cat") for event in events)
    assert kinds["request"] == kinds["answer"] == REQUESTS
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(starts) == len(ends) == REQUESTS
    for number, start in starts.items():
        assert ends[number]["pid"] != start["pid"]
        assert ends[number]["ts"] >= start["ts"]
