"""What the documents say to paste can be pasted."""

import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SCRIPTS = Path(sys.executable).parent


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_the_plans_of_python_are_made(tmp_path: Path):
    (block,) = blocks((DOCS / "plan.md").read_text(), "python")
    script = tmp_path / "plan.py"
    script.write_text(block)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def plan_of(*arguments: str) -> dict[str, Any]:
    """What the table of a plan begins with, and the line of its first target. (As JSON the plan of
    512 + 512 ranks has a million lines.)"""
    command = [SCRIPTS / "tensorbus", "plan", *arguments]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    rank = re.compile(r"^target +0 +(?P<bytes>[\d.]+ \w+) +(?P<peers>\d+) +\d+$", re.MULTILINE)
    (time,) = re.findall(r"^time +([\d.]+) (m?s) at", told, re.MULTILINE)
    (moved,) = re.findall(r"^moved +([\d.]+ \w+) in", told, re.MULTILINE)
    seconds = float(time[0]) / (1000 if time[1] == "ms" else 1)
    (target,) = rank.finditer(told)
    assert "busiest target 1.00 x" in told, "all others are as the first"
    return {"seconds": seconds, "moved": moved, **target.groupdict()}


def size_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"GiB": 2**30, "TiB": 2**40}[unit]


def rounds_to(text: str, value: float) -> bool:
    """A number as it is written is the value, to as many digits."""
    digits = len(text.partition(".")[2])
    return f"{value:.{digits}f}" == text


def test_the_plans_of_scale_take_and_move_what_the_page_says():
    """Both commands, at both speeds, against the row of the table that has their ranks."""
    text = (DOCS / "scale.md").read_text()
    (block,) = blocks(text, "sh")
    commands = [line for line in block.splitlines() if line.startswith("tensorbus plan ")]
    assert len(commands) == 2
    for command, ranks in zip(commands, ["32 -> 4 x 8", "512 -> 64 x 8"], strict=True):
        (row,) = re.findall(rf"^\| {ranks}, .*\|$", text, re.MULTILINE)
        moved, share, slow, fast = (cell.strip() for cell in row.split("|")[2:6])
        arguments = shlex.split(command)[2:-1]
        assert arguments[-1] == "--link"
        plans = {speed: plan_of(*arguments, speed) for speed in ("2.5", "25")}
        for speed, seconds in (("2.5", slow), ("25", fast)):
            assert rounds_to(seconds.removesuffix(" s"), plans[speed]["seconds"]), (row, speed)
        plan = plans["25"]
        assert size_of(plan["moved"]) == size_of(moved)
        assert size_of(plan["bytes"]) == size_of(share)
        # What the page's registration says of these plans: every trainer serves every engine rank.
        assert plan["peers"] == ranks.partition(" ")[0]


def test_the_examples_of_weights_run(tmp_path: Path):
    script = tmp_path / "weights.py"
    script.write_text("\n".join(blocks((DOCS / "weights.md").read_text(), "python")))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_examples_of_plugins_run(tmp_path: Path):
    for number, block in enumerate(blocks((DOCS / "plugins.md").read_text(), "python")):
        script = tmp_path / f"plugin{number}.py"
        script.write_text(block)
        # torch warns of a checkpoint of one process, which the example means.
        command = [sys.executable, "-W", "ignore::UserWarning", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_quickstart_of_the_bus_runs(tmp_path: Path):
    text = (DOCS / "bus.md").read_text()
    quickstart = text[text.index("## Quickstart") : text.index("## State dicts")]
    for name, block in zip(["trainer", "engine"], blocks(quickstart, "python"), strict=True):
        assert f"`{name}.py`" in quickstart
        (tmp_path / f"{name}.py").write_text(block)
    # Others may use the port and the files that everybody has by default.
    shell = "".join(blocks(quickstart, "sh")).replace("29500", str(free_port()))
    shell = shell.replace("--spawn 4", "--spawn 4 --command-queue '{rank}.q' --state '{rank}.s'")
    shell = re.sub(
        r"AGENT_RANK=(\S+)",
        r"AGENT_RANK=\1 TENSOR_BUS_COMMAND_QUEUE_PATH=\1.q TENSOR_BUS_STATE_PATH=\1.s",
        shell,
    )
    done = subprocess.run(
        ["bash", "-c", f"set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{shell}\nwait"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={"PATH": f"{SCRIPTS}:/usr/bin:/bin"},
    )
    assert "rank 2 has [0.0, 1.0, 2.0] in its first row" in done.stdout, done.stderr
    assert "rank 3 has [3.0, 4.0, 5.0] in its first row" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_what_the_walk_of_a_tensor_names_exists():
    named = set(re.findall(r"`(\w+)::(\w+)`", (DOCS / "walk.md").read_text())) - {
        ("Class", "function")
    }
    assert len(named) > 10
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.[ch]*")]
    gone = [
        f"{owner}::{function}"
        for owner, function in sorted(named)
        if not any(
            re.search(rf"\b{owner}::{function}\(", text)
            or (f"class {owner} " in text and re.search(rf"\b{function}\(", text))
            for text in sources
        )
    ]
    assert gone == []
