"""How a worker finds its agent."""

import gc
import os
import signal

import pytest
import tensorbus
import torch
from tensorbus.bootstrap import BootstrapInfo, bootstrap_client, setup_ptrace
from tensorbus.client import TensorBusClient, generate_semaphore_name


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Only what a test sets."""
    for name in ("AGENT_RANK", "AGENT_RANK_OFFSET", "LOCAL_RANK", "RANK",
                 "TENSOR_BUS_COMMAND_QUEUE_PATH", "TENSOR_BUS_STATE_PATH"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.proves("B2.1")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"AGENT_RANK": "3", "LOCAL_RANK": "1"}, (3, 1, None, "direct")),
        ({"AGENT_RANK": "3"}, (3, 3, None, "direct")),
        ({"LOCAL_RANK": "1"}, (1, 1, 0, "offset")),
        ({"LOCAL_RANK": "1", "RANK": "9", "AGENT_RANK_OFFSET": "2"}, (3, 9, 2, "offset")),
        ({"RANK": "1", "AGENT_RANK_OFFSET": "2"}, (3, 1, 2, "offset")),
    ],
)
def test_the_environment_names_the_agent(daemons, environment, variables, expected):
    daemons.start_agent(expected[0])
    for name, value in variables.items():
        environment.setenv(name, value)
    environment.setenv("TENSORBUS_NAMESPACE", daemons.namespace)
    client, info = bootstrap_client(
        lambda rank: (daemons.queue_path(rank), daemons.state_path(rank))
    )
    with client:
        assert isinstance(info, BootstrapInfo)
        assert (info.agent_rank, info.global_rank, info.rank_offset, info.method) == expected
        assert info.command_queue_path == daemons.queue_path(expected[0])
        assert info.device == "cpu"
        assert client.agent_rank == expected[0]
        setup_ptrace()
        setup_ptrace(client._core.agent_pid)


@pytest.mark.proves("B2.1")
@pytest.mark.parametrize("name", ["AGENT_RANK", "LOCAL_RANK", "RANK"])
@pytest.mark.parametrize("value", ["-1", "x", "1.5", " 1"])
def test_a_broken_variable_is_named_with_its_value(environment, name, value):
    environment.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is '{value}'"):
        bootstrap_client()


@pytest.mark.proves("B2.1")
def test_no_variable_at_all_is_an_error():
    with pytest.raises(ValueError, match=r"AGENT_RANK"):
        bootstrap_client()


@pytest.mark.proves("B1.1")
def test_paths_come_from_argument_function_variable_or_default(daemons, environment):
    daemons.start_agent(2)
    environment.setenv("TENSORBUS_NAMESPACE", daemons.namespace)
    environment.setenv("TENSOR_BUS_COMMAND_QUEUE_PATH", daemons.queue_path(2))
    environment.setenv("TENSOR_BUS_STATE_PATH", daemons.state_path(2))
    with TensorBusClient(2) as client:
        assert client.agent_state_lmdb_path == daemons.state_path(2)
    environment.setenv("AGENT_RANK", "2")
    client, info = bootstrap_client()
    client.close()
    assert info.state_path == daemons.state_path(2)
    environment.delenv("TENSOR_BUS_COMMAND_QUEUE_PATH")
    with pytest.raises(ConnectionError, match=r"/tmp/agent_rank2_command.lmdb"):
        TensorBusClient(2, connection_timeout=0.05)
    for arguments in [(2, ""), (2, None, ""), (-1,)]:
        with pytest.raises(ValueError, match=r"empty|rank"):
            TensorBusClient(*arguments)


@pytest.mark.proves("B2.2", "B1.1")
def test_an_absent_or_silent_agent_is_described(daemons):
    with pytest.raises(ConnectionError, match=r"0.command.lmdb.*no heartbeat.*AGENT_RANK"):
        TensorBusClient(0, daemons.queue_path(0), daemons.state_path(0), 0.1)
    agent = daemons.start_agent(0)
    with daemons.client(0) as client:
        assert client.command_queue.size() == 0
    agent.signal(signal.SIGSTOP)
    try:
        with pytest.raises(ConnectionError, match=r"does not answer.*heartbeat.* s old"):
            daemons.client(0, 0.3)
    finally:
        agent.signal(signal.SIGCONT)


@pytest.mark.proves("B1.2")
def test_another_jobs_agent_is_refused(daemons):
    daemons.start_agent(0)
    with pytest.raises(ConnectionError, match=r"namespace"):
        TensorBusClient(0, daemons.queue_path(0), daemons.state_path(0), namespace="other")
    with pytest.raises(ConnectionError, match=r"rank 0, not of rank 1"):
        TensorBusClient(
            1, daemons.queue_path(0), daemons.state_path(0), namespace=daemons.namespace
        )


@pytest.mark.proves("B1.4", "B1.2")
def test_the_files_can_be_read_by_any_lmdb_tool(daemons):
    lmdb = pytest.importorskip("lmdb")
    client = daemons.client(0)
    env, table = client.state_env, client.state_db
    assert isinstance(env, lmdb.Environment)
    with env.begin(db=table) as transaction:
        assert transaction.get(b"heartbeat")
        assert transaction.get(b"tensorbus")
    assert client.state_env is env


@pytest.mark.proves("B1.4")
def test_without_the_lmdb_package_the_error_says_what_to_install(daemons, monkeypatch):
    client = daemons.client(0)
    monkeypatch.setitem(__import__("sys").modules, "lmdb", None)
    with pytest.raises(ImportError, match=r"pip install 'tensorbus\[lmdb\]'"):
        _ = client.state_env


@pytest.mark.proves("B1.4", "B1.8")
def test_an_embedded_client_has_no_files(threads):
    client = threads.client(0)
    assert client.state_env is None
    assert client.state_db is None
    assert client.agent_state_lmdb_path is None


@pytest.mark.proves("B1.6")
def test_names_of_semaphores():
    name = generate_semaphore_name("transfer", "a/b:c")
    assert name.startswith(f"/command_transfer_a_b_c_{os.getpid()}_")
    assert generate_semaphore_name("transfer", "a/b:c") != name
    long = generate_semaphore_name("transfer", "x" * 400)
    assert len(long) == 250
    assert long != generate_semaphore_name("transfer", "x" * 400)
    for module in (tensorbus.client, tensorbus.bootstrap, tensorbus.agent):
        assert module.logger.name == "tensorbus"


@pytest.mark.proves("B2.3")
def test_ptrace_is_opened_to_all_only_on_demand(caplog):
    with pytest.raises(ValueError, match=r"pid"):
        setup_ptrace(0)
    setup_ptrace(-1)
    assert "every process" in caplog.text


@pytest.mark.proves("B1.5")
def test_a_dropped_client_neither_blocks_nor_raises(threads):
    client = threads.client(0)
    threads._clients.clear()
    client.init_pair("p", "a", "b", 1, blocking=False)
    del client
    gc.collect()
    assert torch.ones(1) == 1
