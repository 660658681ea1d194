"""Timelines: files that are whole at any moment, joined on one clock, with arrows."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
    assert {pull["args"]["namespace"] for pull in pulls} == {"default"}
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


def moved(
    work: str, rank: int, at: float, peers: list[int] | None = None, **more: object
) -> dict[str, object]:
    """One event, a thousandth of a second long, that ends ``at`` so many seconds."""
    args = {"work": work, "what": "policy", "version": 1, "outcome": "ok", "rank": rank}
    return {
        "ph": "X", "cat": work, "name": f"{work} policy v1", "pid": 1, "tid": rank,
        "ts": at * 1e6 - 1000, "dur": 1000, "args": args | {"peers": peers or []} | more,
    }  # fmt: skip


def forge(folder: Path, machine: str, events: list[dict[str, object]], ahead: float = 0) -> None:
    """What a process of a machine has written whose wall clock is so many seconds ahead."""
    args = {"host": machine, "boot": machine, "steady_ns": 0, "wall_ns": round((1 + ahead) * 1e9)}
    clock = {"ph": "M", "name": "tensorbus_clock", "pid": 1, "args": args}
    lines = ",\n".join(json.dumps(each) for each in [clock, *events])
    (folder / f"tensorbus-{machine}-1-1.json").write_text(f"[\n{lines}\n]")


def arrows(folder: Path) -> dict[tuple[int, int], float]:
    """By rank and rank, how long it took, in seconds."""
    events = json.loads(run("merge", folder))["traceEvents"]
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    starts = [event for event in events if event["ph"] == "s"]
    assert len(ends) == len(starts)
    return {
        (start["tid"], ends[start["id"]]["tid"]): (ends[start["id"]]["ts"] - start["ts"]) / 1e6
        for start in starts
    }


# The first and the third machine have nothing to do with each other.
@pytest.mark.proves("O3.1")
@pytest.mark.parametrize("ahead", [(0, 0, 0), (0, -9, 4), (0, 5, -8), (0, -5, -9), (3, 3, 0)])
def test_no_arrow_of_three_machines_points_back(tmp_path: Path, ahead: tuple[float, ...]):
    forge(tmp_path, "a", [moved("publish", 0, 10), moved("recv", 0, 40, [1])], ahead[0])
    forge(tmp_path, "b", [moved("pull", 1, 11, [0]), moved("publish", 1, 20),
                          moved("send", 1, 39)], ahead[1])  # fmt: skip
    forge(tmp_path, "c", [moved("pull", 2, 21, [1])], ahead[2])
    found = arrows(tmp_path)
    assert found.keys() == {(0, 1), (1, 2), (1, 0)}
    assert min(found.values()) >= -1e-5, found


@pytest.mark.proves("O3.1")
def test_arrows_stay_within_their_run_and_their_namespace(tmp_path: Path):
    """Two runs into one folder, one after the other, and a job beside them."""
    forge(tmp_path, "run1", [moved("publish", 0, 10), moved("pull", 1, 10.5, [0])])
    forge(tmp_path, "run2", [moved("publish", 0, 60), moved("pull", 2, 61, [0])])
    forge(tmp_path, "run3", [moved("publish", 0, 60.9, namespace="other"),
                             moved("pull", 3, 62, [0], namespace="other")])  # fmt: skip
    found = arrows(tmp_path)
    assert found.keys() == {(0, 1), (0, 2), (0, 3)}
    assert found[0, 1] == pytest.approx(0.5, abs=0.01)
    assert found[0, 2] == pytest.approx(1, abs=0.01)
    assert found[0, 3] == pytest.approx(1.1, abs=0.01)


def phase(work: str, name: str, rank: int, at: float, milliseconds: float) -> dict[str, object]:
    """A part of a piece of work, ``at`` so many seconds."""
    return {
        "ph": "X", "cat": "phase", "name": name, "pid": 1, "tid": rank, "ts": at * 1e6,
        "dur": milliseconds * 1000, "args": {"of": work},
    }  # fmt: skip


@pytest.mark.proves("O3.1")
def test_a_summary_has_the_middle_and_the_tail_of_each_phase_and_who_is_slow(tmp_path: Path):
    """Ranks 2 and 3 read for 1 to 101 ms, rank 4 always for 76: in the middle the longest."""
    for rank in (2, 3, 4):
        events: list[dict[str, object]] = []
        for step in range(101):
            read = 1 + step if rank < 4 else 76
            events.append(moved("pull", rank, step + 1, [0, 1], slowest=step % 3 // 2))
            events.append(phase("pull", "read", rank, step + 0.2, read))
            events.append(phase("pull", "wait", rank, step + 0.1, {2: 2, 3: 3, 4: 1}[rank]))
        forge(tmp_path, f"m{rank}", events[::-1])  # in no order
    forge(tmp_path, "m0", [phase("publish", "stage", 0, 1, 500)])
    lines = run("summary", tmp_path).splitlines()
    figures = {tuple(line.split()[:2]): line.split()[2:] for line in lines[1:-3]}
    assert lines[0].split() == ["work", "phase", "count", "p50", "ms", "p99", "ms"]
    # Half of 303 numbers are at most 76, and all but two of them at most 100.
    assert figures == {
        ("publish", "stage"): ["1", "500.000", "500.000"],
        ("pull", "all"): ["303", "1.000", "1.000"],
        ("pull", "read"): ["303", "76.000", "100.000"],
        ("pull", "wait"): ["303", "2.000", "3.000"],
    }
    assert lines[-3] == (
        "shortest wait in a pull: rank 4, for 1.000 ms; longest: rank 3, for 3.000 ms (medians)"
    )
    assert lines[-2] == "slowest reader: rank 4, which reads for 76.000 ms (median)"
    # Ranks 2, 3 and 4 have each had the bytes of rank 0 last in two steps of three.
    assert lines[-1] == "slowest source: rank 0, whose bytes came last 204 times"


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
    state, got = {"w": torch.ones(10)}, {"w": torch.zeros(10)}
    with (
        tensorbus.TensorBusClient.embedded(store_server.url, rank=0, namespace="profiled") as one,
        tensorbus.TensorBusClient.embedded(store_server.url, rank=1, namespace="profiled") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        trainer, engine = one.link("trainer", "engine"), other.link("engine", "trainer")

        trainer.publish("policy", state)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profile:
            assert trainer.publish("policy", state) == 2
            assert engine.pull("policy", got) == 2
            sends = pool.submit(trainer.send_state_dict, "optimizer", state)
            assert engine.recv_state_dict("optimizer", got) == 1
            sends.result()
            receives = pool.submit(engine.recv_state_dict, "optimizer", got)
            trainer.send_state_dict("optimizer", state)
            assert receives.result() == 2
    names = Counter(event.name for event in profile.events())
    for call in ("publish", "pull", "send_state_dict", "recv_state_dict"):
        assert names[f"tensorbus.{call}"] >= 1, names
    assert names["tensorbus.publish"] == names["tensorbus.pull"] == 1
    assert tensorbus.Link.publish.__doc__
