"""Pairs, batches and rounds, as a worker sees them."""

import asyncio
import gc
import time

import numpy as np
import pytest
import tensorbus
import torch
from buses import Bus, caught, together
from tensorbus import Partial, Replicate, Shard


def two_sides(bus: Bus, sender, receiver, source=None, target=None, size=1, **options):
    """Clients of ranks 0 and 1 with a pair "p" between "a" and "b"."""
    a, b = bus.client(0), bus.client(1)
    together(
        lambda: a.init_pair("p", "a", "b", size, source and (size,), source),
        lambda: b.init_pair("p", "b", "a", size, target and (size,), target),
    )
    return (a, b), together(
        lambda: a.register_tensors("batch", sender, **options),
        lambda: b.register_tensors("batch", receiver, **options),
    )


@pytest.mark.proves("B1.8", "B3.1", "B3.5", "B3.8")
def test_a_round_moves_every_tensor(bus):
    sent = [torch.randn(4, 6), torch.arange(5)]
    got = [torch.zeros(4, 6), torch.zeros(5, dtype=torch.int64)]
    _, (send, recv) = two_sides(bus, [(t, "p") for t in sent], [(t, "p") for t in got])
    for _ in range(3):
        sent[0].add_(1.0)
        sending, receiving = send.transfer("send"), recv.transfer("recv")
        receiving.result(20)
        result = sending.result(20)
        assert result.readers == {1: "read"}
        for mine, theirs in zip(sent, got, strict=True):
            assert torch.equal(mine, theirs)
    assert result.round == 3


@pytest.mark.proves("B3.1", "B3.6", "B5.5")
def test_rows_become_columns_in_another_type(bus):
    whole = torch.randn(6, 8)
    clients = [bus.client(rank) for rank in range(4)]
    rows = [half.clone() for half in whole.chunk(2)]
    columns = [torch.zeros(6, 4, dtype=torch.bfloat16) for _ in range(2)]
    together(
        *(lambda c=c: c.init_pair("w", "t", "e", 2, (2,), [Shard(0)]) for c in clients[:2]),
        *(lambda c=c: c.init_pair("w", "e", "t", 2, (2,), [Shard(1)]) for c in clients[2:]),
    )
    handlers = together(
        *(
            lambda c=c, t=t: c.register_tensors("b", [(t, "w", "weight")])
            for c, t in zip(clients, rows + columns, strict=True)
        )
    )
    together(
        *(lambda h=h: h.transfer("send", blocking=True) for h in handlers[:2]),
        *(lambda h=h: h.transfer("recv", blocking=True) for h in handlers[2:]),
    )
    assert torch.equal(torch.cat(columns, 1), whole.to(torch.bfloat16))


@pytest.mark.proves("B5.1")
def test_a_rank_with_nothing_to_send_completes(threads):
    clients = [threads.client(rank) for rank in range(3)]
    together(
        *(lambda c=c: c.init_pair("w", "t", "e", 2, (2,), [Replicate()]) for c in clients[:2]),
        lambda: clients[2].init_pair("w", "e", "t", 1, (1,), [Replicate()]),
    )
    tensors = [torch.ones(5), torch.ones(5), torch.zeros(5)]
    handlers = together(
        *(
            lambda c=c, t=t: c.register_tensors("b", [(t, "w")])
            for c, t in zip(clients, tensors, strict=True)
        )
    )
    for _ in range(2):
        together(
            *(lambda h=h: h.transfer("send", blocking=True) for h in handlers[:2]),
            lambda: handlers[2].transfer("recv", blocking=True),
        )
    assert torch.equal(tensors[2], torch.ones(5))


@pytest.mark.proves("B1.3", "B1.6")
def test_a_transfer_is_a_future_and_a_semaphore(bus):
    posix_ipc = pytest.importorskip("posix_ipc")
    sent, got = torch.ones(4), torch.zeros(4)
    _, (send, recv) = two_sides(bus, [(sent, "p")], [(got, "p")])
    sending = send.transfer("send")
    assert not sending.done()
    with pytest.raises(tensorbus.BusyError) as busy:
        sending.acquire(0)
    assert isinstance(busy.value, TimeoutError)
    assert isinstance(busy.value, posix_ipc.BusyError)
    with pytest.raises(TimeoutError):
        sending.wait(0.05)
    assert sending.value == 0
    assert sending.name.startswith("/command_transfer_batch_")
    other = posix_ipc.Semaphore(sending.name)
    with pytest.raises(posix_ipc.BusyError):
        other.acquire(0)
    receiving = recv.transfer("recv", blocking=True)
    assert receiving.done()
    receiving.acquire(0)
    with pytest.raises(tensorbus.BusyError):
        receiving.acquire(0)
    other.acquire(20)
    other.close()
    assert sending.done()
    sending.release()
    with sending:
        assert sending.value == 0
    assert sending.value == 1
    name = sending.name
    sending.acquire(0)
    with pytest.raises(posix_ipc.ExistentialError):
        posix_ipc.Semaphore(name)
    assert sending.progress.done == sending.progress.total


@pytest.mark.proves("O1.3")
def test_both_sides_see_how_far_a_transfer_is(bus):
    sent, got = torch.ones(1 << 23), torch.zeros(1 << 23)
    # Cut so small that a round takes a while.
    _, (send, recv) = two_sides(bus, [(sent, "p")], [(got, "p")], bucket_size=64)
    size, between = sent.nbytes, {}
    end = time.monotonic() + 60
    while not all(between.get(name) for name in ("send", "recv")):
        assert time.monotonic() < end, between
        between = {"send": [], "recv": []}
        running = {"send": send.transfer("send"), "recv": recv.transfer("recv")}
        while not (running["send"].done() and running["recv"].done()):
            for name, transfer in running.items():
                done, total = transfer.progress
                assert done <= total
                assert total in (0, size)
                if 0 < done < total:
                    between[name].append(done)
            time.sleep(0.001)
        for transfer in running.values():
            transfer.result(20)
            assert transfer.progress == (size, size)
    for seen in between.values():
        assert seen == sorted(seen)


@pytest.mark.proves("B1.3")
def test_a_transfer_can_be_awaited(bus):
    sent, got = torch.full((3,), 7.0), torch.zeros(3)
    _, (send, recv) = two_sides(bus, [(sent, "p")], [(got, "p")])

    async def both():
        return await asyncio.gather(send.transfer("send"), recv.transfer("recv"))

    sending, receiving = asyncio.run(both())
    assert sending.round == receiving.round == 1
    assert torch.equal(got, sent)
    assert sum(receiving.bytes_by_path.values()) == 12


@pytest.mark.proves("B3.15", "B1.3", "B5.15")
def test_an_expired_call_names_who_is_missing_and_cancels(bus):
    sent, got = torch.ones(3), torch.zeros(3)
    (a, _), (send, recv) = two_sides(bus, [(sent, "p")], [(got, "p")])
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"rank 1\b"):
        send.transfer("send", blocking=True, timeout=0.3)
    assert time.monotonic() - started < 3
    assert a.command_queue.is_empty()
    with pytest.raises(TimeoutError):
        recv.transfer("recv", blocking=True, timeout=0.2)
    sent.fill_(2.0)
    sending, receiving = send.transfer("send"), recv.transfer("recv")
    receiving.result(20)
    sending.result(20)
    assert torch.equal(got, sent)


@pytest.mark.proves("B1.4")
def test_the_queue_can_be_looked_at(bus):
    (a, _), (send, _) = two_sides(bus, [(torch.ones(3), "p")], [(torch.zeros(3), "p")])
    assert a.command_queue.is_empty()
    assert a.command_queue.peek() is None
    sendings = [send.transfer("send"), send.transfer("send")]
    assert a.command_queue.size() == 2
    assert a.command_queue.peek() == ("transfer", "batch")
    for sending in sendings:
        sending.cancel()
        with pytest.raises(tensorbus.CancelledError):
            sending.result(20)


@pytest.mark.proves("B3.12", "B5.12", "B6.2")
def test_no_signal_is_lost(bus):
    sent, got = torch.ones(3), torch.zeros(3)
    (_, b), (send, recv) = two_sides(bus, [(sent, "p")], [(got, "p")])
    assert recv.query_transfer_signal(blocking=False) is False
    assert recv.query_transfer_signal(timeout=0.1) is False
    for round_ in range(1, 4):
        sending = send.transfer("send")
        while not recv.query_transfer_signal(timeout=0.001):
            pass
        assert recv.query_transfer_signal(timeout=20) is True
        assert recv.query_transfer_signal(blocking=False, sync_round=round_) is True
        assert recv.query_transfer_signal(blocking=False, sync_round=round_ + 1) is False
        assert send.query_transfer_signal(timeout=20) is True
        recv.transfer("recv", blocking=True)
        sending.result(20)
        assert recv.query_transfer_signal(blocking=False) is False
    with pytest.raises(ValueError, match=r"nobody"):
        b.query_transfer_signal("nobody")


@pytest.mark.proves("B3.9", "B3.16")
def test_a_moved_tensor_is_refused_by_name(threads):
    model = torch.nn.Linear(3, 2)
    _, (send, _) = two_sides(
        threads,
        [(model.weight.detach(), "p", "weight"), (model.bias, "p", "bias")],
        [(torch.zeros(2, 3), "p", "weight"), (torch.zeros(2), "p", "bias")],
    )
    model.bias.data = torch.zeros(2)
    with pytest.raises(ValueError, match=r'"bias".*register the batch again'):
        send.transfer("send")


@pytest.mark.proves("B1.5", "B3.7", "B5.4")
def test_handlers_are_weak_and_close_their_own(bus):
    (a, b), (send, recv) = two_sides(bus, [(torch.ones(3), "p")], [(torch.zeros(3), "p")])
    by_hand = tensorbus.BatchHandler(a, "batch", ["p"])
    assert by_hand.query_transfer_signal(blocking=False) in (True, False)
    assert by_hand.pair_names == ["p"]
    del by_hand
    gc.collect()
    with pytest.raises(ValueError, match=r"batch"):
        a.register_tensors("batch", [(torch.ones(3), "p")], timeout=5)
    send.close()
    send.close()
    with pytest.raises(RuntimeError, match=r"closed"):
        send.transfer("send")
    # The same variable: the new handler exists before the old one goes.
    got = torch.zeros(3)
    recv.close()
    send, recv = together(
        lambda: a.register_tensors("batch", [(torch.full((3,), 5.0), "p")]),
        lambda: b.register_tensors("batch", [(got, "p")]),
    )
    gc.collect()
    sending = send.transfer("send")
    recv.transfer("recv", blocking=True)
    sending.result(20)
    assert torch.equal(got, torch.full((3,), 5.0))
    lonely = tensorbus.BatchHandler(a, "x", [])
    a.close()
    a.close()
    with pytest.raises(RuntimeError, match=r"closed"):
        a.transfer("batch", "send")
    lonely.close()


@pytest.mark.proves("B1.5")
def test_a_handler_outlives_its_client(threads):
    a = threads.client(0)
    handler = tensorbus.BatchHandler(a, "batch", ["p"])
    threads._clients.remove(a)
    a.close()
    del a
    gc.collect()
    with pytest.raises(RuntimeError, match=r"gone"):
        _ = handler.client


@pytest.mark.proves("B3.5", "B3.16", "B3.2")
def test_bad_input_is_a_value_error(threads):
    a = threads.client(0)
    with pytest.raises(ValueError, match=r"empty|no tensors"):
        a.register_tensors("b", [])
    with pytest.raises(ValueError, match=r"unknown|not"):
        a.register_tensors("b", [(torch.ones(2), "unknown")], timeout=5)
    with pytest.raises(ValueError, match=r"pair"):
        a.register_tensors("b", [torch.ones(2)])
    with pytest.raises(ValueError, match=r"no tensor"):
        a.register_tensors("b", [("text", "p")])
    with pytest.raises(ValueError, match=r"full"):
        a.register_tensors("b", [(torch.ones(2), "p")], verify="some")
    with pytest.raises(ValueError, match=r"placements"):
        a.init_pair("p", "a", "b", 1, device_mesh=(1,))
    with pytest.raises(ValueError, match=r"Broken|not known"):
        a.init_pair("p", "a", "b", 1, (1,), ["Broken"])
    with pytest.raises(ValueError, match=r"send"):
        a.transfer("b", "push")
    with pytest.raises(ValueError, match=r"not registered"):
        a.transfer("b", "send")
    with pytest.raises(ValueError, match=r"seconds"):
        a.init_pair("p", "a", "b", 1, timeout=-1)
    with pytest.raises(ValueError, match=r"rank"):
        tensorbus.TensorBusClient.embedded(threads.url, -1)


@pytest.mark.proves("B3.13", "B3.4")
def test_a_pair_can_be_asked_for_without_waiting(bus):
    a, b = bus.client(0), bus.client(1)
    a.init_pair("p", "a", "b", 1, blocking=False)
    a.init_pair("never", "a", "nobody", 1, blocking=False)
    with pytest.raises(TimeoutError, match=r'"p"'):
        a.register_tensors("batch", [(torch.ones(2), "p")], timeout=0.2)
    b.init_pair("p", "b", "a", 1)
    together(
        lambda: a.register_tensors("batch", [(torch.ones(2), "p")]),
        lambda: b.register_tensors("batch", [(torch.zeros(2), "p")]),
    )


@pytest.mark.proves("B3.5")
def test_a_mismatch_is_told_on_both_sides(bus):
    a, b = bus.client(0), bus.client(1)
    together(lambda: a.init_pair("p", "a", "b", 1), lambda: b.init_pair("p", "b", "a", 1))
    errors = together(
        lambda: caught(lambda: a.register_tensors("x", [(torch.ones(2), "p", "w")])),
        lambda: caught(lambda: b.register_tensors("x", [(torch.ones(3), "p", "w")])),
    )
    for error in errors:
        assert isinstance(error, ValueError)
        assert "w" in str(error)


@pytest.mark.proves("B3.2", "B5.11")
def test_partial_on_both_sides_is_refused(bus):
    a, b = bus.client(0), bus.client(1)
    errors = together(
        lambda: caught(lambda: a.init_pair("p", "a", "b", 1, (1,), [Partial()], timeout=10)),
        lambda: caught(lambda: b.init_pair("p", "b", "a", 1, (1,), [Partial()], timeout=10)),
    )
    assert all(isinstance(error, ValueError) for error in errors), errors


@pytest.mark.proves("B3.14", "B5.3", "B5.14")
def test_the_next_client_and_a_second_one_find_the_agent_usable(daemons):
    (a, _), (send, recv) = two_sides(daemons, [(torch.ones(3), "p")], [(torch.zeros(3), "p")])
    again = daemons.client(0)
    a.close()
    again.init_pair("p", "a", "b", 1)
    got = torch.zeros(3)
    recv.close()
    b = recv.client
    send, recv = together(
        lambda: again.register_tensors("other", [(torch.full((3,), 4.0), "p")]),
        lambda: b.register_tensors("other", [(got, "p")]),
    )
    sending = send.transfer("send")
    recv.transfer("recv", blocking=True)
    sending.result(20)
    assert got[0] == 4.0


@pytest.mark.proves("B3.6")
def test_numpy_views_empty_and_scalar_tensors_go_too(bus):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    sent = [base[::2, ::3], np.zeros((0, 3), dtype=np.int16), torch.tensor(5.0), base.T]
    got = [np.zeros((2, 2), dtype=np.float32), np.zeros((0, 3), dtype=np.int16),
           torch.tensor(0.0), np.zeros((6, 4), dtype=np.float32)]  # fmt: skip
    _, (send, recv) = two_sides(bus, [(t, "p") for t in sent], [(t, "p") for t in got])
    sending = send.transfer("send")
    recv.transfer("recv", blocking=True)
    sending.result(20)
    assert np.array_equal(got[0], sent[0])
    assert got[2] == 5.0
    assert np.array_equal(got[3], base.T)


@pytest.mark.proves("B3.6")
def test_overlapping_sources_are_read_and_never_changed(bus):
    base = torch.arange(6.0)
    sent = [torch.arange(3.0).expand(4, 3), base.as_strided((3, 4), (1, 1))]
    got = [torch.zeros(4, 3), torch.zeros(3, 4)]
    before = [tensor.clone() for tensor in sent]
    _, (send, recv) = two_sides(bus, [(t, "p") for t in sent], [(t, "p") for t in got])
    sending = send.transfer("send")
    recv.transfer("recv", blocking=True)
    sending.result(20)
    for mine, theirs, old in zip(sent, got, before, strict=True):
        assert torch.equal(mine, old)
        assert torch.equal(theirs, old)


class MeshShape:
    """No more of a DeviceMesh than the seed asks for."""

    def __init__(self, *shape: int) -> None:
        self.mesh = type("OnlyShape", (), {"shape": shape})()


@pytest.mark.proves("B3.1")
def test_anything_with_the_shape_of_a_mesh_is_a_mesh(threads: Bus):
    a, b = threads.client(0), threads.client(1)
    together(
        lambda: a.init_pair("p", "a", "b", 1, MeshShape(1), [Shard(0)]),
        lambda: b.init_pair("p", "b", "a", 1, (1,), [Replicate()]),
    )
    assert tensorbus.Layout(MeshShape(2, 2), [Shard(0), Replicate()]).ranks == [0, 1, 2, 3]
