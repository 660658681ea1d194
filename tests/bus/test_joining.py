"""Who may join a pair when, and what a layout may become."""

import time

import pytest
import torch
from buses import Bus, caught, together
from tensorbus import BatchHandler, Partial, Replicate, Shard, TensorBusClient
from tensorbus.kvstore import StoreServer


def pair_up(bus: Bus) -> tuple[TensorBusClient, TensorBusClient]:
    a, b = bus.client(0), bus.client(1)
    together(
        lambda: a.init_pair("p", "a", "b", 1, (1,), [Replicate()]),
        lambda: b.init_pair("p", "b", "a", 1, (1,), [Replicate()]),
    )
    return a, b


@pytest.mark.proves("B3.3", "B5.18")
def test_another_receiver_joins_later_without_a_call_of_the_sender(bus):
    a, b = pair_up(bus)
    sent, got = torch.arange(12.0).reshape(4, 3), torch.zeros(4, 3)
    send, recv = together(
        lambda: a.register_tensors("x", [(sent, "p")]),
        lambda: b.register_tensors("x", [(got, "p")]),
    )
    sending = send.transfer("send")
    recv.transfer("recv", blocking=True)
    assert sending.result(20).readers == {1: "read"}

    late = [bus.client(rank) for rank in (2, 3)]
    parts = [torch.zeros(2, 3, dtype=torch.bfloat16) for _ in late]
    together(*(lambda c=c: c.init_pair("p", "late", "a", 2, (2,), [Shard(0)]) for c in late))
    joined = together(
        *(
            lambda c=c, t=t: c.register_tensors("x", [(t, "p")])
            for c, t in zip(late, parts, strict=True)
        )
    )
    sent.add_(1.0)
    sending = send.transfer("send")
    together(*(lambda h=h: h.transfer("recv", blocking=True) for h in (recv, *joined)))
    assert sending.result(20).readers == {1: "read", 2: "read", 3: "read"}
    assert torch.equal(got, sent)
    assert torch.equal(torch.cat(parts), sent.to(torch.bfloat16))


@pytest.mark.proves("B3.3")
def test_the_same_side_again_is_a_rejoin_and_another_layout_is_refused(bus):
    a, b = pair_up(bus)
    a.init_pair("p", "a", "b", 1, (1,), [Replicate()], timeout=10)
    c = bus.client(2)
    with pytest.raises(ValueError, match="p"):
        c.init_pair("p", "b", "a", 2, (2,), [Shard(0)], timeout=10)
    # When all its members are gone a side may return with another layout.
    b.close()
    d = bus.client(3)
    together(
        lambda: c.init_pair("p", "b", "a", 2, (2,), [Shard(0)]),
        lambda: d.init_pair("p", "b", "a", 2, (2,), [Shard(0)]),
    )


@pytest.mark.proves("B3.2")
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((2, (2,), [Shard(0)]), (2, (2,), [Shard(1)]), "S0|S1"),
        ((2, (2,), [Shard(0)]), (3, (3,), [Shard(0)]), "expects"),
        ((2, (3,), [Shard(0)]), (2, (3,), [Shard(0)]), "3"),
    ],
)
def test_ranks_of_a_side_must_agree(threads, first, second, message):
    clients = [threads.client(rank) for rank in range(2)]
    begin = time.monotonic()
    errors = together(
        *(
            lambda c=c, s=s: caught(lambda: c.init_pair("p", "a", "b", *s, timeout=20))
            for c, s in zip(clients, (first, second), strict=True)
        )
    )
    for error in errors:
        assert isinstance(error, ValueError), error
        assert any(word in str(error) for word in message.split("|")), error
    assert time.monotonic() - begin < 10, "at once, not at the deadline"


@pytest.mark.proves("B3.2")
def test_a_partial_side_can_only_send(bus):
    a, b = bus.client(0), bus.client(1)
    together(
        lambda: a.init_pair("p", "a", "b", 1, (1,), [Partial("sum")]),
        lambda: b.init_pair("p", "b", "a", 1, (1,), [Replicate()]),
    )
    sent, got = torch.ones(3), torch.zeros(3)
    send, recv = together(
        lambda: a.register_tensors("x", [(sent, "p")]),
        lambda: b.register_tensors("x", [(got, "p")]),
    )
    for handler, direction in ((send, "recv"), (recv, "send")):
        with pytest.raises(ValueError, match="Partial"):
            handler.transfer(direction, blocking=True)
    sending = send.transfer("send")
    recv.transfer("recv", blocking=True)
    sending.result(20)
    assert torch.equal(got, sent)


@pytest.mark.proves("B3.11")
def test_both_names_of_a_pair_on_one_agent_need_a_role(bus):
    a = bus.client(0)
    together(
        lambda: a.init_pair("p", "a", "b", 1, (1,), [Replicate()]),
        lambda: a.init_pair("p", "b", "a", 1, (1,), [Replicate()]),
    )
    sent, got = torch.arange(3.0), torch.zeros(3)
    with pytest.raises(ValueError, match="role"):
        a.register_tensors("x", [(sent, "p")], timeout=10)
    send, recv = together(
        lambda: a.register_tensors("x", [(sent, "p")], role="a"),
        lambda: a.register_tensors("x", [(got, "p")], role="b"),
    )
    with pytest.raises(ValueError, match="role"):
        a.transfer("x", "send")
    sending = send.transfer("send")
    recv.transfer("recv", blocking=True)
    sending.result(20)
    assert torch.equal(got, sent)


@pytest.mark.proves("B3.10")
def test_both_sides_sending_at_once_fail_at_once_and_say_so(bus):
    a, b = pair_up(bus)
    handlers = together(
        lambda: a.register_tensors("x", [(torch.ones(3), "p")]),
        lambda: b.register_tensors("x", [(torch.ones(3), "p")]),
    )
    begin = time.monotonic()
    for transfer in [handler.transfer("send") for handler in handlers]:
        with pytest.raises(RuntimeError, match="send"):
            transfer.result(20)
    assert time.monotonic() - begin < 10
    sending = handlers[0].transfer("send")
    handlers[1].transfer("recv", blocking=True)
    sending.result(20)


@pytest.mark.proves("B5.17")
def test_waiting_asks_the_store_for_nothing(unique, start_program, tmp_path):
    with StoreServer("127.0.0.1", 0) as server:
        bus = Bus("embedded", server.url, unique, start_program, tmp_path)
        a, b = bus.client(0), bus.client(1)
        a.init_pair("p", "a", "b", 1, blocking=False)
        time.sleep(0.3)
        before = server.stats().requests
        time.sleep(1.0)
        assert server.stats().requests - before < 20
        b.init_pair("p", "b", "a", 1)
        before = server.stats().requests
        tensors = [torch.zeros(4) for _ in range(500)]
        together(
            lambda: a.register_tensors("x", [(t, "p") for t in tensors]),
            lambda: b.register_tensors("x", [(t.clone(), "p") for t in tensors]),
        )
        assert server.stats().requests - before < 100, "types are told once per rank"
        bus.close()


@pytest.mark.proves("B3.11", "B3.13")
def test_one_side_may_be_asked_for_without_waiting_for_the_other_name(bus):
    a = bus.client(0)
    a.init_pair("p", "a", "b", 1, blocking=False)
    a.init_pair("p", "b", "a", 1)


@pytest.mark.proves("B3.5")
@pytest.mark.parametrize("times", [100, pytest.param(5000, marks=pytest.mark.long)])
def test_a_registration_returns_also_if_the_other_side_is_closed_at_once(threads, times):
    """What it waited for and the closing may come in one go: one time in 2,000 here."""
    a, b = pair_up(threads)
    for _ in range(times):
        together(
            *(lambda c=c: c.register_tensors("x", [(torch.zeros(2), "p")]).close() for c in (a, b))
        )


@pytest.mark.proves("B3.5")
def test_many_ranks_register_many_tensors(threads):
    """What a sender serves is planned once for all its readers, or this takes minutes."""
    count, rows = 32, 64

    def register(rank: int, sends: bool) -> BatchHandler:
        client = threads.client(rank)
        names = ("train", "infer") if sends else ("infer", "train")
        client.init_pair("p", *names, count, (count,), [Shard(0 if sends else 1)], timeout=60)
        shape = (rows // count, rows) if sends else (rows, rows // count)
        tensors = [torch.full(shape, float(rank)) for _ in range(100)]
        held[rank] = tensors
        return client.register_tensors("b", [(tensor, "p") for tensor in tensors], timeout=60)

    held: dict[int, list[torch.Tensor]] = {}
    senders, readers = range(count), range(count, 2 * count)
    handlers = together(
        *(lambda rank=rank: register(rank, rank in senders) for rank in (*senders, *readers))
    )
    together(
        *(lambda h=h: h.transfer("send", blocking=True) for h in handlers[:count]),
        *(lambda h=h: h.transfer("recv", blocking=True) for h in handlers[count:]),
    )
    whole = torch.arange(float(count)).repeat_interleave(rows // count)
    for rank in readers:
        for tensor in held[rank]:
            assert torch.equal(tensor, whole[:, None].expand_as(tensor))
