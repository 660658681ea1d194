"""Timelines: files that are whole at any moment, joined on one clock, with arrows."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorbus
import torch
from jobs import Job, until
from processes import PROGRAM
from tensorbus.kvstore import StoreServer


def traces(folder: Path) -> list[Path]:
    return sorted(folder.glob("tensorbus-*.json"))


def run(*arguments: object) -> str:
    command = [str(PROGRAM), "trace", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.proves("O3.1")
def test_files_of_killed_processes_are_whole_and_merge_with_arrows(
    start_job: Callable[..., Job], tmp_path: Path
):
    folder = tmp_path / "trace"
    job = start_job(env={"TENSORBUS_TRACE": str(folder)})
    job.wait_for_version(5)
    until(
        lambda: all("pull" in path.read_text() or "publish" in path.read_text()
                    for path in traces(folder)) and len(traces(folder)) == 5,
        "every process to have written",
    )  # fmt: skip
    for process in job.ranks.values():
        process.signal(signal.SIGKILL)
    for process in job.ranks.values():
        process.wait()
    for path in traces(folder):
        assert isinstance(json.loads(path.read_text()), list)

    run("merge", folder, "-o", tmp_path / "job.json")
    events = json.loads((tmp_path / "job.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2, 3, 4, 5}
    pulls = [event for event in events if event.get("cat") == "pull"]
    assert {tuple(pull["args"]["peers"]) for pull in pulls} == {(0, 1)}
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        assert start["tid"] in (0, 1)
        assert ends[number]["tid"] in (2, 3, 4)
        # On one clock. A publish may be over a little later than who reads what it published.
        published = next(
            event for event in events
            if event["ph"] == "X" and event["tid"] == start["tid"]
            and event["ts"] - 0.01 <= start["ts"] <= event["ts"] + event["dur"] + 0.01
        )  # fmt: skip
        assert published["cat"] == "publish"
        assert ends[number]["ts"] >= published["ts"]

    summary = run("summary", folder)
    for words in ("publish       stage", "pull          read", "slowest reader: rank"):
        assert words in summary, summary


@pytest.mark.proves("O3.1")
def test_a_torn_last_line_is_passed_over(tmp_path: Path):
    whole = (
        '[\n{"ph":"M","name":"tensorbus_clock","pid":1,"args":{"boot":"b","steady_ns":1,"wall_ns":2}},\n'
        '{"ph":"X","cat":"recv","name":"recv a v1","pid":1,"tid":3,"ts":5.000,"dur":2.000,"args":'
        '{"work":"recv","what":"a","version":1,"outcome":"ok","rank":3,"peers":[],"slowest":-1}},\n'
    )
    (tmp_path / "tensorbus-h-1-1.json").write_text(whole + '{"ph":"X","cat":"re')
    merged = json.loads(run("merge", tmp_path))
    assert [event["name"] for event in merged["traceEvents"]] == ["recv a v1"]


def test_a_folder_without_a_trace_is_said(tmp_path: Path):
    done = subprocess.run(
        [str(PROGRAM), "trace", "summary", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "TENSORBUS_TRACE" in done.stderr


@pytest.mark.proves("O3.1")
def test_a_trace_begins_and_ends_on_demand(store_server: StoreServer, tmp_path: Path):
    path = tensorbus.trace(tmp_path)
    assert path is not None
    assert tensorbus.trace(tmp_path) == path
    with tensorbus.TensorBusClient.embedded(store_server.url, rank=0, namespace="trace") as client:
        client.link("trainer").publish("policy", {"w": np.ones(10, np.float32)})
    tensorbus.trace(None)
    events = json.loads(Path(path).read_text())
    assert "publish policy v1" in {event["name"] for event in events}


@pytest.mark.proves("O3.2")
def test_calls_of_a_link_are_ranges_of_torchs_profiler(
    store_server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the profiler makes it
    state = {"w": torch.ones(10)}
    with tensorbus.TensorBusClient.embedded(
        store_server.url, rank=0, namespace="profiled"
    ) as client:
        link = client.link("trainer")
        link.publish("policy", state)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profile:
            assert link.publish("policy", state) == 2
    names = [event.name for event in profile.events()]
    assert names.count("tensorbus.publish") == 1
    assert tensorbus.Link.publish.__doc__
