"""How many threads copy for a rank changes no byte, and no promise about whose memory is whose."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tensorbus
import torch
from buses import Bus, together
from processes import PROGRAM, eventually
from tensorbus import TensorBusClient
from tensorbus.kvstore import StoreServer
from torch_oracle import same_bits

Client = Callable[..., TensorBusClient]


@pytest.fixture
def client(store_server: StoreServer, unique: str) -> Iterator[Client]:
    """Makes embedded clients with so many threads."""
    made: list[TensorBusClient] = []

    def make(rank: int, **options: object) -> TensorBusClient:
        made.append(TensorBusClient.embedded(store_server.url, rank, unique, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def random_state(seed: int) -> dict[str, torch.Tensor]:
    """Some megabytes: tensors of any length, a large one, transposed ones, pooled ones."""
    rolls = random.Random(seed)
    torch.manual_seed(seed)
    types = [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8]
    found: dict[str, torch.Tensor] = {"empty": torch.zeros(0), "large": torch.randn(3 << 20)}
    for at in range(12):
        shape = [rolls.randrange(1, 700), rolls.randrange(1, 900)]
        tensor = (100 * torch.randn(shape)).to(rolls.choice(types))
        if rolls.random() < 0.3:
            tensor = tensor.t()
        found[f"t{at}"] = tensorbus.share_(tensor) if rolls.random() < 0.3 else tensor
    return found


def blank(state: dict[str, torch.Tensor], wide: bool = False) -> dict[str, torch.Tensor]:
    """Targets; with `wide` of types that the values are converted to."""
    into = torch.float64 if wide else None
    return {name: torch.zeros_like(each, dtype=into) for name, each in state.items()}


def share_of(agents: int) -> int:
    return max(1, min(8, len(os.sched_getaffinity(0)) // agents))


def copy_threads_of_this_process() -> int:
    tasks = Path("/proc/self/task").iterdir()
    return sum((task / "comm").read_text() == "tensorbus copy\n" for task in tasks)


@pytest.mark.proves("L5.1")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_what_is_moved_is_the_same_with_any_number_of_threads(client: Client, threads: int):
    trainer = client(0, copy_threads=threads).link("trainer", "engine")
    engine = client(1, copy_threads=threads).link("engine", "trainer")
    for seed in range(3):
        sent = random_state(seed)
        trainer.publish(f"shelf{seed}", sent)
        for wide in (False, True):
            got = blank(sent, wide)
            engine.pull(f"shelf{seed}", got)
            assert all(same_bits(got[name], sent[name].to(got[name].dtype)) for name in sent)
        narrow = {"w": sent["large"]}
        trainer.publish(f"narrow{seed}", narrow, dtype=torch.bfloat16)
        got = {"w": torch.zeros_like(sent["large"])}
        engine.pull(f"narrow{seed}", got)
        assert same_bits(got["w"], sent["large"].to(torch.bfloat16).to(torch.float32))
        received = blank(sent)
        together(
            lambda seed=seed, sent=sent: trainer.send_state_dict(f"round{seed}", sent),
            lambda seed=seed, into=received: engine.recv_state_dict(f"round{seed}", into),
        )
        assert all(same_bits(received[name], sent[name]) for name in sent)


@pytest.mark.proves("L5.1")
def test_workers_of_daemons_copy_with_the_threads_of_their_agent(daemons: Bus):
    trainer, engine = daemons.client(0), daemons.client(1)
    sent = random_state(5)
    link = trainer.link("trainer")
    link.publish("policy", sent)

    def copies_as_two_agents_do() -> bool:
        link.publish("small", {"w": torch.ones(1)})
        return trainer.copy_threads == share_of(2)

    eventually(copies_as_two_agents_do, "the trainer to hear of both agents")
    got = blank(sent)
    engine.link("engine", "trainer").pull("policy", got)
    assert all(same_bits(got[name], sent[name]) for name in sent)


@pytest.mark.proves("L5.1")
def test_agents_of_a_host_share_its_cores(client: Client):
    first = client(0)
    assert first.copy_threads == share_of(1)
    others = [client(rank) for rank in range(1, 4)]
    eventually(lambda: first.copy_threads == share_of(4), "the first agent to see the others")
    fixed = client(100, copy_threads=3)
    for other in others:
        other.close()
    eventually(lambda: first.copy_threads == share_of(2), "the first agent to see them go")
    assert fixed.copy_threads == 3


@pytest.mark.proves("L5.1")
def test_a_client_that_is_closed_leaves_no_thread(client: Client):
    before = copy_threads_of_this_process()
    publisher = client(0, copy_threads=4)
    publisher.link("trainer").publish("policy", random_state(1))
    eventually(lambda: copy_threads_of_this_process() == before + 3, "the threads to begin")
    publisher.close()
    eventually(lambda: copy_threads_of_this_process() == before, "the threads to end")


@pytest.mark.proves("L5.1")
def test_a_pull_that_ends_early_leaves_nobody_writing(client: Client):
    trainer = client(0, copy_threads=4).link("trainer")
    engine = client(1, copy_threads=4).link("engine", "trainer")
    sent = {"w": torch.full((16 << 20,), 1.0)}
    trainer.publish("policy", sent)
    views = {"w": torch.zeros(16 << 20)}
    engine.pull("policy", views)
    cut_short = 0
    for turn in range(40):
        views["w"].zero_()
        # From a moment that nobody sees to one at which the read is long over.
        try:
            engine.pull("policy", views, timeout=0.0004 * turn)
        except TimeoutError:
            cut_short += 1
            views["w"].fill_(-1.0)
            torch.mm(torch.ones(200, 200), torch.ones(200, 200))
            assert views["w"].eq(-1.0).all()
    assert cut_short > 0


@pytest.mark.proves("L5.1")
def test_a_forked_child_copies_with_threads_of_its_own():
    code = """
import os, sys, torch, tensorbus
from tensorbus.kvstore import StoreServer
torch.set_num_threads(1)  # its own threads do not survive a fork
with StoreServer("127.0.0.1", 0) as server:
    parent = tensorbus.TensorBusClient.embedded(server.url, 0, copy_threads=4)
    parent.link("trainer").publish("policy", {"w": torch.ones(4 << 20)})
    child = os.fork()
    if child == 0:
        own = tensorbus.TensorBusClient.embedded(server.url, 1, copy_threads=4)
        link = own.link("other")
        assert link.publish("policy", {"w": torch.ones(4 << 20)}) == 1
        own.close()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    parent.close()
    sys.exit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 7


@pytest.mark.parametrize("threads", [0, -1, 9, 99, "x", "2", 2.5, True])
def test_a_number_of_threads_that_makes_no_sense_is_refused(client: Client, threads: object):
    with pytest.raises(ValueError, match=r"copy_threads .*1 to 8"):
        client(0, copy_threads=threads)
    with pytest.raises(ValueError, match=r"copy_threads .*1 to 8"):
        TensorBusClient(0, "/nowhere/queue", "/nowhere/state", 0.1, copy_threads=threads)


@contextmanager
def environment(value: str) -> Iterator[None]:
    os.environ["TENSORBUS_COPY_THREADS"] = value
    try:
        yield
    finally:
        del os.environ["TENSORBUS_COPY_THREADS"]


def test_the_environment_says_how_many_where_nobody_else_does(client: Client):
    with environment("3"):
        assert client(0).copy_threads == 3
        assert client(1, copy_threads=2).copy_threads == 2
    with environment("many"), pytest.raises(ValueError, match=r'COPY_THREADS is "many".*1 to 8'):
        client(2)


def test_the_agent_command_takes_the_number_and_refuses_nonsense(store_server: StoreServer):
    command = [str(PROGRAM), "agent", "--store", store_server.url, "--rank", "0"]
    ended = subprocess.run(
        [*command, "--world-size", "1", "--copy-threads", "99"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode != 0
    assert "copy_threads is 99" in ended.stderr
    assert "1 to 8" in ended.stderr


def test_threads_publish_and_pull_at_once(client: Client):
    """One crew serves them all; whoever finds it at work copies alone."""
    link = client(0, copy_threads=4).link("trainer")
    engine = client(1, copy_threads=4).link("engine", "trainer")
    names = [f"policy{at}" for at in range(3)]
    stop = threading.Event()

    def publish(name: str) -> None:
        for step in range(1, 16):
            link.publish(name, {"w": torch.full((2 << 20,), float(step))})
        stop.set()

    def pull(name: str) -> None:
        views = {"w": torch.zeros(2 << 20)}
        while not stop.is_set():
            version = engine.pull(name, views)
            assert views["w"].eq(float(version)).all()

    together(*(lambda name=name: publish(name) for name in names),
             *(lambda name=name: pull(name) for name in names))  # fmt: skip
