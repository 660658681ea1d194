"""Calls of links that run while their caller goes on, and readers that know no names."""

from __future__ import annotations

import asyncio
import threading

import pytest
import tensorbus
import torch
from buses import Bus, caught, together
from links import dtensor, links
from processes import Start, eventually
from tensorbus import CancelledError, EndOfStreamError, Link
from torch_oracle import same_bits


def state(value: float) -> dict:
    return {"embed": torch.full((4, 3), value), "layers": {0: {"w": torch.full((5,), value)}}}


def values(state_dict: dict) -> set[float]:
    return set(state_dict["embed"].unique().tolist()) | set(
        state_dict["layers"][0]["w"].unique().tolist()
    )


def ends(bus: Bus) -> tuple[Link, Link]:
    (trainer,), (engine,) = (
        links(bus, "trainer", "engine", [0]),
        links(bus, "engine", "trainer", [1]),
    )
    return trainer, engine


def first_round(trainer: Link, engine: Link, sent: dict, got: dict) -> None:
    """Each waits for the other."""
    together(
        lambda: trainer.send_state_dict("policy", sent),
        lambda: engine.recv_state_dict("policy", got),
    )


@pytest.mark.proves("L1.8", "O1.3")
def test_a_pull_that_runs_is_a_future(bus: Bus):
    trainer, engine = ends(bus)
    views = state(0.0)
    handle = engine.pull_async("policy", views)
    assert not handle.done()
    with pytest.raises(TimeoutError, match="not over"):
        handle.result(timeout=0.05)
    trainer.publish("policy", state(1.0))
    assert handle.result(20) == 1
    assert handle.done()
    assert values(views) == {1.0}
    assert handle.progress == (68, 68)
    trainer.publish("policy", state(2.0))
    told: list[tuple[int, int]] = []
    assert engine.pull("policy", views, newer_than=1, progress=lambda *now: told.append(now)) == 2
    assert values(views) == {2.0}
    assert told
    assert told == sorted(told)
    assert told[-1] == (68, 68)


@pytest.mark.proves("L1.8")
def test_a_pull_that_is_cancelled_is_done_when_nobody_writes_any_more(bus: Bus):
    trainer, engine = ends(bus)
    views = state(0.0)
    alone = engine.pull_async("policy", views, timeout=None)  # registers
    alone.cancel()
    with pytest.raises(CancelledError):
        alone.result(10)
    trainer.publish("policy", state(1.0))
    assert engine.pull("policy", views) == 1
    waiting = engine.pull_async("policy", views, newer_than=1, timeout=None)
    behind = engine.pull_async("policy", state(0.0), timeout=None)  # waits for its turn
    behind.cancel()
    with pytest.raises(CancelledError):
        behind.result(10)
    waiting.cancel()
    with pytest.raises(CancelledError):
        waiting.result(10)
    trainer.publish("policy", state(2.0))
    assert values(views) == {1.0}
    assert engine.pull("policy", views) == 2
    waiting.cancel()
    assert isinstance(caught(waiting.result), CancelledError), "once over it stays as it is"


@pytest.mark.proves("L1.8")
def test_a_task_that_is_cancelled_ends_the_pull_that_it_awaits(bus: Bus):
    trainer, engine = ends(bus)
    trainer.publish("policy", state(1.0))
    views = state(0.0)

    async def follow() -> None:
        assert await engine.pull_async("policy", views) == 1
        handle = engine.pull_async("policy", views, newer_than=1, timeout=None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await handle
        assert handle.done()
        assert isinstance(caught(handle.result), CancelledError)
        later = engine.pull_async("policy", views, newer_than=1)
        await asyncio.to_thread(trainer.publish, "policy", state(2.0))
        assert [await later, await later] == [2, 2]

    asyncio.run(asyncio.wait_for(follow(), 30))
    assert values(views) == {2.0}


@pytest.mark.proves("L1.8", "L1.11")
def test_follow_gives_versions_until_the_publishers_close(bus: Bus):
    trainer, engine = ends(bus)
    views = state(0.0)
    seen: list[tuple[int, set[float]]] = []

    async def serve() -> None:
        async for version in engine.follow("policy", views):
            seen.append((version, values(views)))
            step = float(version + 1)
            if version < 3:
                await asyncio.to_thread(trainer.publish, "policy", state(step))
            else:
                await asyncio.to_thread(trainer.close)

    trainer.publish("policy", state(1.0))
    asyncio.run(asyncio.wait_for(serve(), 30))
    assert seen == [(version, {float(version)}) for version in (1, 2, 3)]


@pytest.mark.proves("L1.8")
def test_close_ends_handles_that_wait(bus: Bus):
    trainer, engine = ends(bus)
    trainer.publish("policy", state(1.0))
    views = state(0.0)
    assert engine.pull("policy", views) == 1
    reads = engine.pull_async("policy", views, newer_than=1, timeout=None)
    registers = engine.pull_async("value", state(0.0), timeout=None)
    engine.close()
    for handle in (reads, registers):
        assert isinstance(caught(lambda handle=handle: handle.result(10)), RuntimeError)
    assert engine.pull("policy", views) == 1, "a link that was closed may go on"


@pytest.mark.proves("L1.8")
def test_a_dictionary_that_cannot_be_moved_is_told_by_the_handle(threads: Bus):
    _, engine = ends(threads)
    handle = engine.pull_async("policy", {"w": "no tensor"}, timeout=10)
    with pytest.raises(ValueError, match='"w" is no tensor but str'):
        handle.result(20)
    with pytest.raises(ValueError, match="both given"):
        engine.pull_async("policy", state(0.0), version=1, newer_than=1).result(20)


@pytest.mark.proves("L1.9")
def test_training_goes_on_while_staged_weights_are_sent(bus: Bus):
    trainer, engine = ends(bus)
    model = [torch.zeros(50_000), torch.zeros(300, 70)]
    into = [torch.zeros(50_000), torch.zeros(300, 70)]
    sent = {str(n): tensor for n, tensor in enumerate(model)}
    got = {str(n): tensor for n, tensor in enumerate(into)}
    first_round(trainer, engine, sent, got)
    received: dict[int, bool] = {}

    def receive() -> None:
        for step in range(1, 21):
            version = engine.recv_state_dict("policy", got)
            # Every byte is of the step that was sent, whatever the trainer did meanwhile.
            received[version] = all(
                same_bits(tensor, torch.full_like(tensor, float(step))) for tensor in into
            )

    reading = threading.Thread(target=receive, daemon=True)
    reading.start()
    handles = []
    for _ in range(20):
        for tensor in model:
            tensor.add_(1.0)
        handles.append(trainer.send_state_dict_async("policy", sent))
        handles[-1].staged.wait(20)
    for tensor in model:
        tensor.fill_(-1.0)
    assert [handle.result(20) for handle in handles] == list(range(2, 22))
    reading.join(20)
    assert received == dict.fromkeys(range(2, 22), True)


@pytest.mark.proves("L1.9")
def test_a_send_that_runs_says_who_has_read(bus: Bus):
    trainer, engine = ends(bus)
    got = {"w": torch.zeros(3)}
    with pytest.raises(ValueError, match="was not sent"):
        trainer.last_send("policy")
    first_round(trainer, engine, {"w": torch.ones(3)}, got)
    assert trainer.last_send("policy") == (1, {1: "read"})
    handle = trainer.send_state_dict_async("policy", {"w": torch.full((3,), 2.0)})
    handle.staged.wait(10)
    assert handle.staged.done()
    assert not handle.done()
    assert handle.readers == {}
    assert engine.recv_state_dict("policy", got) == 2
    assert handle.result(10) == 2
    assert handle.readers == {1: "read"}
    assert handle.progress == (12, 12)
    assert trainer.last_send("policy").readers == {1: "read"}

    async def send() -> int:
        sending = trainer.send_state_dict_async("policy", {"w": torch.full((3,), 3.0)})
        receiving = asyncio.to_thread(engine.recv_state_dict, "policy", got)
        version, _ = await asyncio.gather(sending, receiving)
        return version

    assert asyncio.run(asyncio.wait_for(send(), 30)) == 3
    assert got["w"].tolist() == [3.0] * 3


@pytest.mark.proves("L1.9")
def test_pooled_tensors_are_staged_when_all_have_read(threads: Bus):
    trainer, engine = ends(threads)
    sent, got = {"w": tensorbus.share_(torch.ones(1000))}, {"w": torch.zeros(1000)}
    first_round(trainer, engine, sent, got)
    handle = trainer.send_state_dict_async("policy", sent)
    with pytest.raises(TimeoutError, match="read where they are"):
        handle.staged.wait(0.2)
    assert engine.recv_state_dict("policy", got) == 2
    handle.staged.wait(10)
    assert handle.result(10) == 2


@pytest.mark.proves("L1.9")
def test_a_send_that_is_cancelled_leaves_the_tensors_to_the_caller(bus: Bus):
    trainer, engine = ends(bus)
    got = {"w": torch.zeros(3)}
    first_round(trainer, engine, {"w": torch.ones(3)}, got)
    handle = trainer.send_state_dict_async("policy", {"w": torch.ones(3)}, timeout=None)
    handle.staged.wait(10)
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.result(10)
    together(
        lambda: trainer.send_state_dict("policy", {"w": torch.full((3,), 4.0)}),
        lambda: engine.recv_state_dict("policy", got, version=3),
    )
    assert got["w"].tolist() == [4.0] * 3


ENGINE = """
import sys
import torch
import tensorbus

url, namespace, rank = sys.argv[1:]
client = tensorbus.TensorBusClient.embedded(url, int(rank), namespace)
link = client.link("engine", "trainer")
print(link.recv_state_dict("policy", {"w": torch.zeros(3)}, timeout=60), flush=True)
sys.stdin.read()
"""


@pytest.mark.proves("L1.9")
def test_a_reader_that_is_gone_is_in_the_last_send(threads: Bus, start_python: Start):
    (trainer,) = links(threads, "trainer", "engine", [0])
    sent = {"w": torch.ones(3)}
    engine = start_python(ENGINE, threads.url, threads.namespace, 1)
    assert trainer.send_state_dict("policy", sent) == 1
    assert engine.line() == "1"
    handle = trainer.send_state_dict_async("policy", sent, allow_lost=True)
    handle.staged.wait(10)
    engine.kill()
    assert handle.result(20) == 2
    assert handle.readers == {1: "lost"}
    assert trainer.last_send("policy") == (2, {1: "lost"})


@pytest.mark.proves("L1.12")
def test_a_reader_that_knows_no_names_gets_them(bus: Bus):
    whole = torch.arange(60.0).reshape(10, 6)
    trainers = [bus.client(rank).link("trainer", expected_world_size=2) for rank in (0, 1)]
    (engine,) = links(bus, "engine", "trainer", [2])
    described: list[dict] = []
    waiting = threading.Thread(
        target=lambda: described.append(engine.describe("policy", timeout=20)), daemon=True
    )
    waiting.start()

    def publish(rank: int) -> int:
        rows = slice(5 * rank, 5 * rank + 5)
        parts = {
            "part": tensorbus.Part(whole[rows], (10, 6), (5 * rank, 0)),
            "shard": dtensor(whole[:, 3 * rank : 3 * rank + 3].clone(), [10, 6], [0, 1],
                             [("S", 1)], rank),
            f"only at {rank}": torch.full((2,), float(rank), dtype=torch.bfloat16),
        }  # fmt: skip
        return trainers[rank].publish("policy", parts)

    assert together(lambda: publish(0), lambda: publish(1)) == [1, 1]
    waiting.join(20)
    assert described == [
        {
            "only at 0": ((2,), torch.bfloat16),
            "only at 1": ((2,), torch.bfloat16),
            "part": ((10, 6), torch.float32),
            "shard": ((10, 6), torch.float32),
        }
    ]
    version, tensors = engine.pull_new("policy")
    assert version == 1
    assert same_bits(tensors["part"], whole)
    assert same_bits(tensors["shard"], whole)
    assert tensors["only at 1"].tolist() == [1.0, 1.0]
    assert all(tensorbus._core.is_pooled(tensor) for tensor in tensors.values())
    whole.add_(1.0)
    together(lambda: publish(0), lambda: publish(1))
    version, some = engine.pull_new("policy", ["part"], newer_than=1)
    assert (version, list(some)) == (2, ["part"])
    assert same_bits(some["part"], whole)
    with pytest.raises(ValueError, match='"policy" has no tensors other'):
        engine.pull_new("policy", ["part", "other"])


@pytest.mark.proves("L1.12")
def test_what_is_published_anew_is_described_anew(bus: Bus):
    trainer, engine = ends(bus)
    with pytest.raises(TimeoutError, match="nobody has published"):
        engine.describe("policy", timeout=0.2)
    trainer.publish("policy", {"w": torch.ones(3)}, dtype=torch.bfloat16)
    assert engine.describe("policy") == {"w": ((3,), torch.bfloat16)}
    trainer.publish("policy", {"v": torch.ones(5)})
    eventually(lambda: "v" in engine.describe("policy"), "the new names")
    assert engine.pull_new("policy")[1]["v"].tolist() == [1.0] * 5
    trainer.close()
    with pytest.raises(EndOfStreamError):
        engine.pull_new("policy", newer_than=2, timeout=10)
