"""Files and sockets of an agent: what is refused, what survives, who may come in."""

import os
import signal
import socket
import stat
from pathlib import Path

import pytest
import torch
from buses import Bus, together
from processes import PROGRAM, Start, eventually


def start_agent(start: Start, bus: Bus, queue: Path, state: Path, rank: int = 0):
    return start(
        str(PROGRAM), "agent", "--store", bus.url, "--rank", str(rank), "--world-size", "64",
        "--namespace", bus.namespace, "--command-queue", str(queue), "--state", str(state),
        "--timeout", "20",
    )  # fmt: skip


def link_elsewhere(path: Path) -> None:
    target = path.with_suffix(".elsewhere")
    target.touch()
    path.symlink_to(target)


def second_link(path: Path) -> None:
    path.touch()
    path.with_suffix(".twin").hardlink_to(path)


def foreign(path: Path) -> None:
    path.touch(0o600)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, 12345)


@pytest.mark.proves("B5.16")
@pytest.mark.parametrize("which", ["queue", "state"])
@pytest.mark.parametrize(
    "make",
    [
        link_elsewhere,
        second_link,
        foreign,
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(b"no database" * 1000),
        lambda path: os.mkfifo(path),
    ],
    ids=["symlink", "hard link", "foreign", "folder", "garbage", "fifo"],
)
def test_a_file_that_is_not_the_agents_is_refused_and_left_alone(
    daemons, start_program, tmp_path, which, make
):
    paths = {"queue": tmp_path / "q", "state": tmp_path / "s"}
    make(paths[which])
    before = paths[which].lstat()
    agent = start_agent(start_program, daemons, paths["queue"], paths["state"])
    assert agent.wait() == 1
    assert str(paths[which]) in agent.errors
    after = paths[which].lstat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)


@pytest.mark.proves("B5.16")
@pytest.mark.parametrize("which", ["queue", "state"])
@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_a_damaged_file_is_an_error_and_no_crash(daemons, start_program, which, damage):
    agent = daemons.start_agent(0)
    with daemons.client(0) as client:
        client.init_pair("p", "a", "b", 1, blocking=False)
    agent.kill()
    path = Path(daemons.queue_path(0) if which == "queue" else daemons.state_path(0))
    size = path.stat().st_size
    if damage == "truncated":
        os.truncate(path, size // 3)
    else:
        with path.open("r+b") as file:
            file.write(os.urandom(min(size, 64 * 1024)))
    agent = start_agent(
        start_program, daemons, Path(daemons.queue_path(0)), Path(daemons.state_path(0))
    )
    assert agent.wait() == 1
    assert str(path) in agent.errors


@pytest.mark.proves("B5.16")
def test_files_and_socket_are_for_the_owner_alone(daemons):
    daemons.start_agent(0)
    for path in (daemons.queue_path(0), daemons.state_path(0), daemons.queue_path(0) + ".sock"):
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0, path


def test_a_second_agent_of_a_rank_is_refused(daemons, start_program):
    daemons.start_agent(0)
    same_files = start_agent(
        start_program, daemons, Path(daemons.queue_path(0)), Path(daemons.state_path(0))
    )
    assert same_files.wait() == 1
    assert "another agent" in same_files.errors
    with daemons.client(0) as client:
        assert client.command_queue.is_empty()


@pytest.mark.proves("B1.2")
def test_garbage_on_the_socket_harms_nobody(daemons):
    daemons.start_agent(0)
    client = daemons.client(0)
    for garbage in (b"\x00" * 64, os.urandom(4096), b"\xff" * 8):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as intruder:
            intruder.connect(daemons.queue_path(0) + ".sock")
            intruder.sendall(garbage)
    assert client.command_queue.is_empty()


@pytest.mark.proves("B5.13", "B1.3")
def test_semaphores_go_with_whoever_had_them(daemons):
    a, b = daemons.client(0), daemons.client(1)
    together(lambda: a.init_pair("p", "a", "b", 1), lambda: b.init_pair("p", "b", "a", 1))
    send, recv = together(
        lambda: a.register_tensors("x", [(torch.ones(3), "p")]),
        lambda: b.register_tensors("x", [(torch.zeros(3), "p")]),
    )
    for _ in range(10):
        sending, receiving = send.transfer("send"), recv.transfer("recv")
        names = [sending.name, receiving.name]
        for transfer in (sending, receiving):
            transfer.acquire(20)
        assert not any(Path(f"/dev/shm/sem.{name[1:]}").exists() for name in names)
    waiting = send.transfer("send")
    path = Path(f"/dev/shm/sem.{waiting.name[1:]}")
    assert path.exists()
    daemons.agents[0].kill()
    daemons.start_agent(0)
    eventually(lambda: not path.exists(), "the semaphore to go with the restarted agent")
    waiting = recv.transfer("recv")
    path = Path(f"/dev/shm/sem.{waiting.name[1:]}")
    b.close()
    assert not path.exists()


@pytest.mark.proves("B1.2", "B5.15")
def test_the_heartbeat_goes_on_while_commands_wait(daemons):
    a, b = daemons.client(0), daemons.client(1)
    together(lambda: a.init_pair("p", "a", "b", 1), lambda: b.init_pair("p", "b", "a", 1))
    send, _ = together(
        lambda: a.register_tensors("x", [(torch.ones(3), "p")]),
        lambda: b.register_tensors("x", [(torch.zeros(3), "p")]),
    )
    send.transfer("send")

    def beat() -> bytes:
        with a.state_env.begin(db=a.state_db) as transaction:
            return bytes(transaction.get(b"heartbeat"))

    eventually(lambda: b"send of batch" in beat(), "the command in the heartbeat")
    before = beat()
    eventually(lambda: beat() != before, "the next heartbeat")
    # A stuck agent is told by its age and its command.
    daemons.agents[0].signal(signal.SIGSTOP)
    with pytest.raises(ConnectionError, match=r"heartbeat.* s old, in send of batch"):
        daemons.client(0, 0.3)
    daemons.agents[0].signal(signal.SIGCONT)


def test_an_agent_of_a_closed_port_says_so(start_program, tmp_path):
    agent = start_program(
        str(PROGRAM), "agent", "--store", "tensorbus://127.0.0.1:1", "--rank=0", "--world-size=1",
        f"--command-queue={tmp_path}/q", f"--state={tmp_path}/s", "--timeout=0.3",
    )  # fmt: skip
    unreachable = 5
    assert agent.wait() == unreachable
    assert "127.0.0.1:1" in agent.errors
