"""Whole jobs as users start them: scripts written for the other library, and `tensorbus launch`."""

import os
import signal
import sys
from pathlib import Path

import pytest
from processes import PROGRAM, Process, Start, eventually, free_port

# Every process of a job imports torch.
pytestmark = pytest.mark.timeout(180)

# As scripts for the other library are written.
ECHO = """
import os, sys
import torch
import fserver_lib as f

role = os.environ["DMLC_ROLE"]
f.init()
if role == "worker":
    push = torch.rand(4, 8)
    pulls = [torch.zeros(4, 8) for _ in range(int(os.environ["DMLC_NUM_SERVER"]))]
    handler = f.push_pull([push], [1], pulls, [i for i in range(len(pulls))])
    f.wait(handler)
    assert all(torch.equal(pull, 2 * push) for pull in pulls)
    print("doubled", sys.argv[1:])
elif role == "server":
    for handler, tensors, keys in f.get_batch():
        f.respond([2 * tensors[0]], handler)
    print("answered")
f.stop()
"""


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def launch(start_program: Start):
    def run(*arguments: str, **environment: str) -> Process:
        return start_program(str(PROGRAM), "launch", *arguments, env=environment)

    return run


def all_lines(process: Process) -> list[str]:
    lines = []
    try:
        while True:
            lines.append(process.line())
    except AssertionError:
        return lines


def test_a_script_of_the_other_library_runs_in_every_role(start_program: Start, script) -> None:
    path = script(ECHO)
    common = {
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_ENABLE_RDMA": "ibverbs",
        "DMLC_INTERFACE": "auto",
        "STEPMESH_BAKCEND": "GPU",
    }
    nodes = [
        start_program(
            *(sys.executable, "-m", "tensorbus.fserver", path, "--size", "8"),
            env=common | {"DMLC_ROLE": role},
        )
        for role in ("scheduler", "server", "worker")
    ]
    assert [node.wait(150) for node in nodes] == [0, 0, 0], [node.errors for node in nodes]
    assert all_lines(nodes[2]) == ["doubled ['--size', '8']"]


def test_a_script_that_is_not_there_is_named(start_program: Start, tmp_path: Path) -> None:
    for arguments, text in (([], "usage"), ([str(tmp_path / "no.py")], "no.py")):
        process = start_program(sys.executable, "-m", "tensorbus.fserver", *arguments)
        assert process.wait() != 0
        assert text in process.errors


def test_help_is_given(start_program: Start) -> None:
    process = start_program(sys.executable, "-m", "tensorbus.fserver", "--help")
    assert process.wait() == 0
    assert "TENSORBUS_CUDA_SHIM" in "".join(all_lines(process))


@pytest.mark.proves("P1")
def test_launch_runs_every_role_with_its_name(launch, script) -> None:
    process = launch("--workers", "2", "--servers", "2", script(ECHO), "--steps", "3")
    assert process.wait(150) == 0, process.errors
    assert sorted(all_lines(process)) == [
        "[server 0] answered",
        "[server 1] answered",
        "[worker 0] doubled ['--steps', '3']",
        "[worker 1] doubled ['--steps', '3']",
    ]


LANES = """
import os
import torch
import fserver

f = fserver.f
f.init()
rank = 2 * int(os.environ["DMLC_NODE_RANK"]) + int(os.environ["STEPMESH_GPU"])
if os.environ["DMLC_ROLE"] == "worker":
    pull = torch.zeros(2)
    f.wait(f.push_pull([torch.tensor([float(rank)])], [0], [pull], [0]))
    print("lanes", pull.tolist())
else:
    for handler, tensors, keys in f.get_batch():
        f.respond([torch.tensor([float(tensors[0]), float(rank)])], handler)
f.stop()
f.init()  # and again
f.barrier(True, True)
f.stop()
"""


def test_launch_makes_groups(launch, script) -> None:
    process = launch("--workers", "1", "--servers", "1", "--group-size", "2", script(LANES))
    assert process.wait(150) == 0, process.errors
    assert sorted(all_lines(process)) == [
        "[worker 0] lanes [0.0, 0.0]",
        "[worker 1] lanes [1.0, 1.0]",
    ]


FAILING = """
import os, sys, time
import tensorbus.fserver as f

f.init()
print("pid", os.getpid())
f.barrier(True, True)
if os.environ["DMLC_ROLE"] == "worker" and os.environ["DMLC_NODE_RANK"] == "1":
    sys.exit("this one fails")
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_failure_ends_everybody(launch, script) -> None:
    process = launch("--workers", "2", "--servers", "1", script(FAILING))
    assert process.wait(150) == 1
    lines = all_lines(process)
    assert "[worker 1] this one fails" in lines
    assert "worker 1 failed with code 1" in process.errors
    for line in lines:
        if " pid " in line:
            assert is_gone(int(line.split()[-1]))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_launch_ends_everybody(launch, script, how: signal.Signals) -> None:
    forever = FAILING.replace("sys.exit", "print")
    process = launch("--workers", "2", "--servers", "1", script(forever))
    pids = []
    while len(pids) < 3:
        line = process.line()
        if " pid " in line:
            pids.append(int(line.split()[-1]))
    os.kill(process.pid, how)
    assert process.wait(30) == (-9 if how == signal.SIGKILL else 128 + how)
    for pid in pids:
        eventually(lambda pid=pid: is_gone(pid), "the end of every node")


def test_launch_refuses_nonsense(launch, tmp_path: Path) -> None:
    for arguments, text in (
        (["--workers", "0", __file__], "at least 1"),
        (["--workers", "some", "x.py"], "--workers"),
        ([], "which script"),
        (["--wrokers", "2", "x.py"], "--wrokers is no option"),
        ([str(tmp_path / "no.py")], "no.py"),
    ):
        process = launch(*arguments)
        assert process.wait(150) == 2
        assert text in process.errors
        assert not list(all_lines(process)), "nothing was started"


def test_the_help_of_launch_shows_where_the_script_goes(launch) -> None:
    process = launch("--help")
    assert process.wait(150) == 0
    assert "tensorbus launch [OPTIONS] SCRIPT [ARGUMENTS]" in "".join(all_lines(process))


def test_the_example_is_right(launch) -> None:
    example = Path(__file__).resolve().parents[2] / "examples/push_pull/attention_ffn.py"
    process = launch("--workers", "2", "--servers", "1", str(example), "--steps", "5")
    assert process.wait(150) == 0, (process.errors, all_lines(process))
    lines = all_lines(process)
    assert sum("5 steps are right" in line for line in lines) == 2
    assert sum("answered 5 batches of 2 workers" in line for line in lines) == 1


CUDA = """
import os
import torch
import fserver_lib as f
import optimus
from optimus.ops import silu_dot

gpu = os.environ.get("STEPMESH_GPU", "0")
torch.cuda.set_device(int(gpu))
torch.cuda.manual_seed_all(1)
f.init()
if os.environ["DMLC_ROLE"] == "worker":
    push = torch.rand([2, 16], dtype=torch.bfloat16, device=f"cuda:{gpu}")
    pull = torch.empty(2, 16, dtype=torch.bfloat16).cuda()
    with torch.cuda.stream(torch.cuda.Stream()):
        handler = f.push_pull([push], [1], [pull], [2], need_event=True)
    f.wait(handler)
    torch.cuda.synchronize()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    assert torch.equal(pull, push.to("cuda") + 1)
    print("right", push.device.type)
    try:
        silu_dot(push)
    except RuntimeError as error:
        print(error)
else:
    torch.set_default_device("cuda:0")
    ((handler, tensors, _),) = f.get_batch()
    f.respond([tensors[0] + torch.ones(16, dtype=torch.bfloat16)], handler)
f.stop()
"""


def test_scripts_for_cuda_run_on_the_cpu_when_told(launch, script) -> None:
    process = launch(script(CUDA), TENSORBUS_CUDA_SHIM="1")
    lines = []
    assert process.wait(150) == 0, (process.errors, all_lines(process))
    lines = all_lines(process)
    assert "[worker 0] right cpu" in lines
    assert "[worker 0] optimus.ops.silu_dot is not installed" in lines
    assert any(
        "TENSORBUS_CUDA_SHIM=1: tensors for cuda are made on the CPU" in line for line in lines
    )


def test_without_being_told_they_do_not(launch, script) -> None:
    process = launch(script(CUDA))
    assert process.wait(150) == 1
    assert any("optimus" in line or "CUDA" in line for line in all_lines(process))
