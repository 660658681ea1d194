"""TensorBusAgent: an agent that a Python program runs, and the store that rank 0 may host."""

import signal
from pathlib import Path

import pytest
import tensorbus
import torch
from buses import together
from processes import Process, Start, free_port
from tensorbus import TensorBusClient

AGENT = """
import signal, sys
import tensorbus
port, queue, state, namespace = sys.argv[1:]
agent = tensorbus.TensorBusAgent(0, 3, "127.0.0.1", int(port), queue, state,
                                 store_namespace=namespace)
agent.step()
signal.signal(signal.SIGTERM, lambda *_: agent.close())
print("serving")
agent.run()
print("closed")
"""


def start_agent(start_python: Start, folder: Path, port: int, namespace: str) -> Process:
    agent = start_python(AGENT, port, folder / "q", folder / "s", namespace)
    assert agent.line() == "serving"
    return agent


@pytest.mark.proves("B1.7")
def test_rank_0_hosts_the_store_and_serves_until_it_is_closed(start_python, tmp_path, unique):
    agent = start_agent(start_python, tmp_path, free_port(), unique)
    with TensorBusClient(
        0, str(tmp_path / "q"), str(tmp_path / "s"), 20.0, namespace=unique
    ) as client:
        assert client.command_queue.size() == 0
    agent.signal(signal.SIGTERM)
    assert agent.line() == "closed"
    assert agent.wait() == 0, agent.errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proves("B1.7", "B5.18")
def test_the_hosted_store_comes_back_with_its_agent(start_python, tmp_path, unique):
    port = free_port()
    agent = start_agent(start_python, tmp_path, port, unique)
    url = f"tensorbus://127.0.0.1:{port}"
    a, b = (TensorBusClient.embedded(url, rank, unique) for rank in (1, 2))
    with a, b:
        together(lambda: a.init_pair("p", "a", "b", 1), lambda: b.init_pair("p", "b", "a", 1))
        sent, got = torch.zeros(3), torch.zeros(3)
        send, recv = together(
            lambda: a.register_tensors("x", [(sent, "p")]),
            lambda: b.register_tensors("x", [(got, "p")]),
        )

        def run(value: float) -> None:
            sent.fill_(value)
            sending = send.transfer("send")
            recv.transfer("recv", blocking=True)
            sending.result(20)
            assert got[0] == value

        run(1.0)
        agent.kill()
        run(2.0)
        start_agent(start_python, tmp_path, port, unique)
        run(3.0)
        together(lambda: a.init_pair("q", "a", "b", 1), lambda: b.init_pair("q", "b", "a", 1))


def test_what_cannot_be_served_is_refused():
    with pytest.raises(ValueError, match="rank"):
        tensorbus.TensorBusAgent(2, 2, "127.0.0.1", 1, None, None)
    with pytest.raises(ValueError, match="store_backend"):
        tensorbus.TensorBusAgent(0, 1, "127.0.0.1", 1, None, None, store_backend="redis")


def test_a_closed_agent_says_so(tmp_path, unique):
    agent = tensorbus.TensorBusAgent(
        0, 1, "127.0.0.1", free_port(), str(tmp_path / "q"), str(tmp_path / "s"),
        store_namespace=unique,
    )  # fmt: skip
    agent.step()
    agent.close(destroy=False)
    agent.close()
    with pytest.raises(RuntimeError, match="closed"):
        agent.run()
    assert {path.name for path in tmp_path.iterdir()} >= {"q", "s"}
