"""Bars at terminals, and nowhere else."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorbus
from processes import PROGRAM
from tensorbus.bar import Bar
from tensorbus.kvstore import StoreServer


@pytest.fixture
def terminal():
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream:
        yield leader, stream
    os.close(leader)


@pytest.mark.proves("O4.5")
def test_a_line_of_our_own(terminal: tuple[int, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    leader, stream = terminal
    with Bar("pull policy", stream) as bar:
        bar(0, 0)  # nothing is known yet
        bar(1_000_000_000, 4_000_000_000)
        bar(4_000_000_000, 4_000_000_000)
    written = b""
    while not written.endswith(b"\n"):
        written += os.read(leader, 10_000)
    lines = written.decode().split("\r")
    assert lines[1] == f"pull policy [{'#' * 7}{'.' * 21}]  25 % of 4.00 GB"
    assert lines[2].startswith(f"pull policy [{'#' * 28}] 100 %")
    assert lines[-1] == "\n"


@pytest.mark.proves("O4.5")
def test_tqdm_where_it_is_installed(terminal: tuple[int, Any], monkeypatch: pytest.MonkeyPatch):
    class Theirs:
        def __init__(self, total: int, **_: Any) -> None:
            self.n, self.total, self.closed = 0, total, False
            made.append(self)

        def update(self, more: int) -> None:
            self.n += more

        def close(self) -> None:
            self.closed = True

    made: list[Theirs] = []
    module = ModuleType("tqdm")
    module.tqdm = Theirs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm", module)
    with Bar("pull policy", terminal[1]) as bar:
        bar(10, 40)
        bar(30, 40)
        bar.fill()
    assert [(each.n, each.total, each.closed) for each in made] == [(40, 40, True)]


@pytest.mark.proves("O4.5")
def test_nothing_where_there_is_no_terminal(
    store_server: StoreServer, capsys: pytest.CaptureFixture[str]
):
    stream = io.StringIO()
    with Bar("pull policy", stream) as bar:
        bar(1, 2)
    assert stream.getvalue() == ""
    with (
        tensorbus.TensorBusClient.embedded(store_server.url, rank=0, namespace="bar") as trainer,
        tensorbus.TensorBusClient.embedded(store_server.url, rank=1, namespace="bar") as engine,
    ):
        trainer.link("trainer").publish("policy", {"w": np.ones(100_000, np.float32)})
        state = {"w": np.zeros(100_000, np.float32)}
        assert engine.link("engine", "trainer").pull("policy", state, progress=True) == 1
    assert state["w"].all()
    assert "pull policy [" not in capsys.readouterr().err


@pytest.mark.proves("O4.5")
def test_a_pull_shows_a_bar_at_a_terminal(
    store_server: StoreServer,
    terminal: tuple[int, Any],
    monkeypatch: pytest.MonkeyPatch,
    unique: str,
):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    leader, stream = terminal
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("tensorbus.link._PROGRESS_EVERY", 0.001)
    with (
        tensorbus.TensorBusClient.embedded(store_server.url, rank=0, namespace=unique) as trainer,
        tensorbus.TensorBusClient.embedded(store_server.url, rank=1, namespace=unique) as engine,
    ):
        trainer.link("trainer").publish("policy", {"w": np.ones(50_000_000, np.float32)})
        state = {"w": np.zeros(50_000_000, np.float32)}
        assert engine.link("engine", "trainer").pull("policy", state, progress=True) == 1
    assert state["w"].all()
    shown = b""
    while not shown.endswith(b"\n"):
        shown += os.read(leader, 10_000)
    assert shown.startswith(b"\rpull policy [")
    assert b"100 % of 0.20 GB" in shown


# Takes seconds to plan.
LARGE = json.dumps([{"name": f"w{i}", "shape": [4096, 4096]} for i in range(90)])


@pytest.mark.proves("O4.5")
@pytest.mark.parametrize("at_a_terminal", [True, False])
def test_planning_a_model_shows_a_bar_at_a_terminal_only(
    terminal: tuple[int, Any], tmp_path: Path, at_a_terminal: bool
):
    (tmp_path / "model.json").write_text(LARGE)
    command = [str(PROGRAM), "plan", "--model", str(tmp_path / "model.json"),
               "--source", "64:S0", "--target", "256:S1", "--json"]  # fmt: skip
    leader, stream = terminal
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=stream if at_a_terminal else subprocess.PIPE,
        timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["tensors"]
    if not at_a_terminal:
        assert done.stderr == b""
        return
    shown = b""
    while not shown.endswith(b"\x1b[2K"):  # it is wiped at the end
        shown += os.read(leader, 10_000)
    assert shown.startswith(b"\rplan [")
    assert b" %" in shown
