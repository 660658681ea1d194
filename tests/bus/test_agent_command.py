"""The program `tensorbus agent`."""

import signal
from pathlib import Path

import pytest
from processes import PROGRAM, Start
from tensorbus.kvstore import StoreServer


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--rank", "0", "--world-size", "1"], 2, "store"),
        (["--store", "memory://x", "--rank", "2", "--world-size", "2"], 2, "world-size"),
        (
            ["--store=memory://x", "--rank=0", "--world-size=4", "--spawn=2", "--state=/tmp/x"],
            2,
            "{rank}",
        ),
        (["--store=memory://x", "--rank=0", "--world-size=1", "--retain=-1"], 2, "--retain"),
        (["--store=memory://x", "--rank=0", "--world-size=1", "--retain=nan"], 2, "--retain"),
    ],
)
def test_wrong_options_are_explained(
    start_program: Start, options: list[str], code: int, message: str
) -> None:
    agent = start_program(str(PROGRAM), "agent", *options)
    assert agent.wait() == code
    assert message in agent.errors


def test_several_agents_start_at_once_and_stop_cleanly(
    start_program: Start, store_server: StoreServer, tmp_path: Path, unique: str
) -> None:
    options = ["--store", store_server.url, "--namespace", unique, "--world-size", "8"]
    files = ["--command-queue", f"{tmp_path}/{{rank}}.q", "--state", f"{tmp_path}/{{rank}}.s"]
    agents = start_program(str(PROGRAM), "agent", *options, "--rank", "4", "--spawn", "2", *files)
    ready = {f"ready rank {rank} {tmp_path}/{rank}.q" for rank in (4, 5)}
    assert {agents.line(), agents.line()} == ready
    twin = start_program(str(PROGRAM), "agent", *options, "--rank", "5", *files)
    assert twin.wait() == 1
    assert "another agent" in twin.errors
    agents.signal(signal.SIGTERM)
    assert agents.wait() == 0, agents.errors
    # All write to one file: every line says whose it is.
    lines = agents.errors.splitlines()
    for rank in (4, 5):
        assert any(f" info: agent {rank}: stopping on signal" in line for line in lines), lines
    assert all(" agent 4: " in line or " agent 5: " in line for line in lines), lines
    # The files stay for the next agents, the sockets and locks do not.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4.q", "4.s", "5.q", "5.s"]


def test_a_killed_agent_can_be_started_again(
    start_program: Start, store_server: StoreServer, tmp_path: Path, unique: str
) -> None:
    command = [
        str(PROGRAM), "agent", "--store", store_server.url, "--namespace", unique, "--rank", "0",
        "--world-size", "1", "--command-queue", f"{tmp_path}/q", "--state", f"{tmp_path}/s",
    ]  # fmt: skip
    for _ in range(2):
        agent = start_program(*command)
        assert agent.line() == f"ready rank 0 {tmp_path}/q"
        agent.kill()
    (tmp_path / "q").write_bytes(b"something else")
    agent = start_program(*command)
    assert agent.wait() == 1
    assert "no LMDB file" in agent.errors
