"""Where agents keep their files, and what others may do about it."""

import os
import stat
from pathlib import Path

import pytest
from buses import Bus
from processes import PROGRAM, Start
from tensorbus import TensorBusAgent, TensorBusClient, bootstrap_client

STRANGER = 12345


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state"
    monkeypatch.setenv("TENSORBUS_STATE_DIR", str(path))
    monkeypatch.delenv("TENSOR_BUS_COMMAND_QUEUE_PATH", raising=False)
    monkeypatch.delenv("TENSOR_BUS_STATE_PATH", raising=False)
    return path


def start_agent(start: Start, bus: Bus):
    return start(
        str(PROGRAM), "agent", "--store", bus.url, "--rank=0", "--world-size=1",
        "--namespace", bus.namespace, "--timeout=20",
    )  # fmt: skip


def test_agents_and_workers_meet_in_the_users_folder(
    daemons: Bus, start_program: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start_agent(start_program, daemons)
    assert agent.line() == f"ready rank 0 {folder}/agent_rank0_command.lmdb"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with TensorBusClient(0, connection_timeout=20, namespace=daemons.namespace) as client:
        assert client.agent_state_lmdb_path == f"{folder}/agent_rank0_state.lmdb"
        with client.state_env.begin(db=client.state_db) as transaction:
            assert transaction.get(b"heartbeat")
    monkeypatch.setenv("AGENT_RANK", "0")
    monkeypatch.setenv("TENSORBUS_NAMESPACE", daemons.namespace)
    client, info = bootstrap_client(connection_timeout=20)
    client.close()
    assert info.command_queue_path == f"{folder}/agent_rank0_command.lmdb"
    assert info.state_path == f"{folder}/agent_rank0_state.lmdb"


def refused_by_all(bus: Bus, start: Start, why: str) -> None:
    agent = start_agent(start, bus)
    assert agent.wait() != 0
    assert why in agent.errors
    host, port = bus.url.removeprefix("tensorbus://").split(":")
    with pytest.raises(ValueError, match=why):
        TensorBusClient(0, connection_timeout=0.1)
    with pytest.raises(ValueError, match=why):
        TensorBusAgent(0, 1, host, int(port), None, None)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: (path.mkdir(), path.chmod(0o750)), "others may enter it"),
        (lambda path: path.write_text(""), "not a folder"),
        (lambda path: path.symlink_to(path.parent), "symbolic link"),
    ],
    ids=["open", "file", "symlink"],
)
def test_a_folder_that_is_not_private_is_refused(daemons, start_program, folder, make, why):
    make(folder)
    refused_by_all(daemons, start_program, why)


def test_a_folder_of_another_user_is_refused(daemons, start_program, folder):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder.mkdir(0o700)
    os.chown(folder, STRANGER, STRANGER)
    refused_by_all(daemons, start_program, f"belongs to user {STRANGER}")


@pytest.mark.usefixtures("folder")
def test_a_relative_folder_is_refused(daemons, start_program, monkeypatch):
    monkeypatch.setenv("TENSORBUS_STATE_DIR", "here")
    refused_by_all(daemons, start_program, "starts with a /")
    assert not Path("here").exists()


PLANT = """
import os, sys
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
content = open(sys.argv[3], "rb").read()
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
os.write(file, content)
os.fchmod(file, 0o666)
print("planted", flush=True)
for line in sys.stdin:
    pass
"""

LOOK = """
import resource, sys
import tensorbus
try:
    tensorbus.TensorBusClient(0, sys.argv[1], sys.argv[2], 0.2)
except ConnectionError as error:
    print("no agent:", error, flush=True)
client = tensorbus.TensorBusClient.__new__(tensorbus.TensorBusClient)
client.agent_state_lmdb_path, client._state, client._closed = sys.argv[2], None, True
try:
    client.state_env
except RuntimeError as error:
    print("refused:", error, flush=True)
"""


def test_a_worker_maps_no_file_that_another_user_has_planted(
    daemons: Bus, start_python: Start, tmp_path: Path
) -> None:
    """Which its owner could cut while it is mapped: a SIGBUS."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    daemons.start_agent(0)
    real = Path(daemons.state_path(0))
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    copy = shared / "copy"
    copy.write_bytes(real.read_bytes()[: 64 * 1024])
    copy.chmod(0o644)
    os.truncate(copy, real.stat().st_size)
    planted = shared / "agent_rank0_state.lmdb"
    planter = start_python(PLANT, planted, STRANGER, copy)
    assert planter.line(60) == "planted"
    assert planted.stat().st_uid == STRANGER
    worker = start_python(LOOK, shared / "agent_rank0_command.lmdb", planted)
    assert "There is no heartbeat" in worker.line()
    assert f"belongs to user {STRANGER}" in worker.line()
    assert worker.wait() == 0
