"""Agents that run out of disk, memory or descriptors, or are asked for too much: they go on."""

import resource
from pathlib import Path

import pytest
import torch
from buses import Bus, caught, together
from processes import MakeDisk, eventually
from tensorbus import Partial, Replicate, TensorBusClient

KIB, MIB = 1 << 10, 1 << 20


def fill(disk: Path) -> Path:
    filler = disk / "something else"
    with filler.open("wb", buffering=0) as file:
        while caught(lambda: file.write(bytes(4 * KIB))) is None:
            pass
    return filler


def test_a_full_disk_ends_no_agent_and_no_longer_than_it_lasts(
    daemons: Bus, make_disk: MakeDisk
) -> None:
    daemons.folder = make_disk(512 * KIB)
    agent = daemons.start_agent(0)
    client = daemons.client(0)
    filler = fill(daemons.folder)
    names = [f"{number:0900}" for number in range(20)]
    refusals = [caught(lambda n=n: client.init_pair(n, "a", "b", 1, blocking=False)) for n in names]
    assert any("No space left on device" in str(error) for error in refusals), refusals
    assert all(error is None or isinstance(error, RuntimeError) for error in refusals), refusals
    eventually(lambda: "shows no heartbeat until that is over" in agent.errors, "the agent's word")
    assert isinstance(caught(lambda: daemons.client(0, 5)), ConnectionError | None)
    assert agent.is_alive()
    filler.unlink()
    eventually(lambda: "its state is written again" in agent.errors, "the heartbeat")
    client.init_pair("later", "a", "b", 1, blocking=False)
    other = daemons.client(0)
    other.init_pair("latest", "a", "b", 1, blocking=False)
    assert agent.errors.count("shows no heartbeat") == 1


def test_an_agent_without_descriptors_lives_and_serves_who_waited(daemons: Bus) -> None:
    agent = daemons.start_agent(0)
    first = daemons.client(0)
    usual = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (agent.open_descriptors(), usual[1]))
    assert isinstance(caught(lambda: daemons.client(0, 1.5)), ConnectionError)
    first.init_pair("p", "a", "b", 1, blocking=False)
    assert agent.errors.count("no connection can be accepted") == 1
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, usual)
    daemons.client(0).init_pair("q", "a", "b", 1, blocking=False)
    eventually(lambda: "connections are accepted again" in agent.errors, "the agent's word")
    assert agent.errors.count("no connection can be accepted") == 1


def address_space(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def register(client: TensorBusClient, tensor: torch.Tensor) -> object:
    return client.register_tensors("x", [(tensor, "p")], verify="full")


# The reader's agent is a process of its own: one that is hours old has free memory of any size.
def test_no_memory_for_a_checked_reduction_fails_that_recv_only(daemons: Bus) -> None:
    size = 40 * MIB
    clients = [daemons.client(rank) for rank in range(3)]
    reader = daemons.agents[2].pid
    together(
        *(lambda c=c: c.init_pair("p", "a", "b", 2, (2,), [Partial()]) for c in clients[:2]),
        lambda: clients[2].init_pair("p", "b", "a", 1, (1,), [Replicate()]),
    )
    sent = [torch.full((size,), rank + 1, dtype=torch.uint8) for rank in range(2)]
    got = torch.zeros(size, dtype=torch.uint8)
    batches = together(
        *(lambda c=c, t=t: register(c, t) for c, t in zip(clients, [*sent, got], strict=True))
    )
    sending = [batch.transfer("send") for batch in batches[:2]]
    batches[2].query_transfer_signal(timeout=20)
    usual = resource.prlimit(reader, resource.RLIMIT_AS)
    resource.prlimit(reader, resource.RLIMIT_AS, (address_space(reader) + 8 * MIB, usual[1]))
    try:
        error = caught(lambda: batches[2].transfer("recv", blocking=True, timeout=None))
    finally:
        resource.prlimit(reader, resource.RLIMIT_AS, usual)
    assert isinstance(error, RuntimeError), error
    assert "rank 2 cannot prepare to read it: out of memory" in str(error)
    batches[2].transfer("recv", blocking=True, timeout=20)
    for each in sending:
        each.result(20)
    assert torch.all(got == 3)


@pytest.mark.parametrize("long", ["batch", "tensor", "pair", "side", "other side"])
def test_a_name_that_is_too_long_is_an_error_at_once(bus: Bus, long: str) -> None:
    names = {what: what for what in ("batch", "tensor", "pair", "side", "other side")}
    tensor = torch.ones(3)
    client = bus.client(0)

    def use() -> None:
        client.init_pair(names["pair"], names["side"], names["other side"], 1, blocking=False)
        client.register_tensors(
            names["batch"], [(tensor, names["pair"], names["tensor"])], timeout=None
        )

    names[long] = "ä" * 513
    with pytest.raises(ValueError, match="1026 bytes; at most 1024"):
        use()


def test_names_of_the_greatest_length_work(bus: Bus) -> None:
    pair, a, b, batch, tensor = [letter * 1024 for letter in "pabxt"]
    one, two = bus.client(0), bus.client(1)
    together(lambda: one.init_pair(pair, a, b, 1), lambda: two.init_pair(pair, b, a, 1))
    got = torch.zeros(3)
    send, recv = together(
        lambda: one.register_tensors(batch, [(torch.ones(3), pair, tensor)]),
        lambda: two.register_tensors(batch, [(got, pair, tensor)]),
    )
    together(
        lambda: send.transfer("send", blocking=True), lambda: recv.transfer("recv", blocking=True)
    )
    assert torch.all(got == 1)


@pytest.mark.proves("L4.1")
def test_a_batch_that_is_too_large_for_one_value_of_the_store_is_split(threads: Bus) -> None:
    one, two = threads.client(0), threads.client(1)
    together(lambda: one.init_pair("p", "a", "b", 1), lambda: two.init_pair("p", "b", "a", 1))
    names = [f"{number:01000}" for number in range(9000)]
    have, got = torch.ones(9000), torch.zeros(9000)
    send, recv = together(
        lambda: one.register_tensors("x", [(have[at], "p", name) for at, name in enumerate(names)]),
        lambda: two.register_tensors("x", [(got[at], "p", name) for at, name in enumerate(names)]),
    )
    together(
        lambda: send.transfer("send", blocking=True), lambda: recv.transfer("recv", blocking=True)
    )
    assert torch.all(got == 1)
