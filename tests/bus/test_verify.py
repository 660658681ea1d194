"""Checksums: what was read is compared with what was offered."""

import pytest
import tensorbus
import torch
from buses import Bus, caught, together
from tensorbus import BatchHandler, Partial, Replicate, Shard

CHUNK = 4096


def registered(
    bus: Bus, sent: torch.Tensor, got: list[torch.Tensor], **options: object
) -> tuple[BatchHandler, list[BatchHandler]]:
    """One sender, and receivers that hold rows."""
    sender, *receivers = [bus.client(rank) for rank in range(len(got) + 1)]
    together(
        lambda: sender.init_pair("p", "a", "b", 1, (1,), [Replicate()]),
        *(
            lambda c=c: c.init_pair("p", "b", "a", len(got), (len(got),), [Shard(0)])
            for c in receivers
        ),
    )
    send, *recvs = together(
        lambda: sender.register_tensors("x", [(sent, "p", "w")], **options),
        *(
            lambda c=c, t=t: c.register_tensors("x", [(t, "p", "w")], CHUNK)
            for c, t in zip(receivers, got, strict=True)
        ),
    )
    return send, recvs


@pytest.mark.parametrize("pooled", [False, True])
def test_a_tensor_that_changes_after_the_send_is_named_with_the_ranks(bus: Bus, pooled: bool):
    sent = torch.arange(6000.0).reshape(60, 100)
    if pooled:
        tensorbus.share_(sent)
    got = [torch.zeros(30, 100, dtype=torch.float64) for _ in range(2)]
    send, recvs = registered(bus, sent, got, verify="full")
    sending = send.transfer("send")
    for recv in recvs:
        recv.query_transfer_signal(timeout=20)  # it is offered: the checksums are made
    sent[59, 99] = -1.0  # which the second of them reads
    recvs[0].transfer("recv", blocking=True)
    error = caught(lambda: recvs[1].transfer("recv", blocking=True))
    assert isinstance(error, RuntimeError), error
    for part in (
        "rank 2 has read from rank 0",
        'tensor "w"',
        "changed it before the round was over",
    ):
        assert part in str(error)
    failed = caught(lambda: sending.result(20))
    assert isinstance(failed, RuntimeError)
    assert dict(failed.readers) == {1: "read", 2: "failed"}
    # The next round is whole again.
    sending = send.transfer("send")
    together(*(lambda h=h: h.transfer("recv", blocking=True) for h in recvs))
    sending.result(20)
    assert torch.equal(torch.cat(got), sent.to(torch.float64))


@pytest.mark.parametrize("asks", ["sender", "receiver"])
def test_what_is_reduced_is_compared_with_what_every_single_rank_offered(bus: Bus, asks: str):
    sent = [torch.arange(6000.0).reshape(60, 100) * scale for scale in (1, 2, 4)]
    got = [torch.zeros(60, 50, dtype=torch.float64) for _ in range(2)]
    clients = [bus.client(rank) for rank in range(5)]
    together(
        *(lambda c=c: c.init_pair("p", "a", "b", 3, (3,), [Partial("sum")]) for c in clients[:3]),
        *(lambda c=c: c.init_pair("p", "b", "a", 2, (2,), [Shard(1)]) for c in clients[3:]),
    )
    verify = {0: asks == "sender", 1: asks == "sender", 2: False, 3: False, 4: asks == "receiver"}
    handles = together(
        *(
            lambda c=c, r=r, t=t: c.register_tensors(
                "x", [(t, "p", "w")], CHUNK, verify="full" if verify[r] else "off"
            )
            for r, (c, t) in enumerate(zip(clients, sent + got, strict=True))
        )
    )
    sends, recvs = handles[:3], handles[3:]
    # As offered, it is the sum.
    together(*(lambda h=h: h.transfer("send" if h in sends else "recv", True) for h in handles))
    assert torch.equal(torch.cat(got, 1), sum(sent).to(torch.float64))
    # One of the three changes what the second receiver reads of it.
    sending = [handle.transfer("send") for handle in sends]
    for recv in recvs:
        recv.query_transfer_signal(timeout=20)
    sent[1][59, 99] = -1.0
    before = got[1].clone()
    recvs[0].transfer("recv", blocking=True)
    error = caught(lambda: recvs[1].transfer("recv", blocking=True))
    assert isinstance(error, RuntimeError), error
    assert "rank 4 has read from rank 1" in str(error)
    assert 'tensor "w"' in str(error)
    assert torch.equal(got[1], before)  # nothing wrong was added up
    for future in sending:
        caught(lambda f=future: f.result(20))
    # The next round is whole again.
    together(*(lambda h=h: h.transfer("send" if h in sends else "recv", True) for h in handles))
    assert torch.equal(torch.cat(got, 1), sum(sent).to(torch.float64))


def test_samples_see_every_chunk_once_in_sixteen_rounds(threads: Bus):
    sent = torch.zeros(20 * CHUNK // 4)
    got = [torch.zeros(20 * CHUNK // 4)]
    send, (recv,) = registered(threads, sent, got, verify="sample")
    noticed = 0
    for _ in range(16):
        sending = send.transfer("send")
        recv.query_transfer_signal(timeout=20)
        sent[7 * CHUNK // 4 + 3] += 1.0
        noticed += caught(lambda: recv.transfer("recv", blocking=True)) is not None
        caught(lambda s=sending: s.result(20))
    assert noticed == 1


def test_nothing_is_compared_unless_asked_for(threads: Bus):
    sent, got = torch.zeros(1000), [torch.zeros(1000)]
    send, (recv,) = registered(threads, sent, got)
    sending = send.transfer("send")
    recv.query_transfer_signal(timeout=20)
    sent[3] = 1.0
    recv.transfer("recv", blocking=True)
    sending.result(20)
    with pytest.raises(ValueError, match="verify"):
        threads.client(9).link("x", "y", 1, verify="some")


def test_first_rounds_are_compared_until_one_was_read(bus: Bus):
    sent, got = torch.zeros(1000), [torch.zeros(1000)]
    send, (recv,) = registered(bus, sent, got, verify="first")

    def goes_wrong() -> bool:
        sending = send.transfer("send")
        recv.query_transfer_signal(timeout=20)
        sent[3] += 1.0
        error = caught(lambda: recv.transfer("recv", blocking=True))
        caught(lambda: sending.result(20))
        return error is not None

    assert goes_wrong()
    assert goes_wrong()
    sending = send.transfer("send")
    recv.transfer("recv", blocking=True)
    sending.result(20)
    assert torch.equal(got[0], sent)
    assert not goes_wrong()


def test_a_first_round_is_reduced_from_what_every_single_rank_offered(bus: Bus):
    sent = [torch.arange(600.0) * scale for scale in (1, 2)]
    got = torch.zeros(600)
    clients = [bus.client(rank) for rank in range(3)]
    together(
        *(lambda c=c: c.init_pair("p", "a", "b", 2, (2,), [Partial("sum")]) for c in clients[:2]),
        lambda: clients[2].init_pair("p", "b", "a", 1, (1,), [Replicate()]),
    )
    handles = together(
        *(
            lambda c=c, t=t: c.register_tensors("x", [(t, "p", "w")], CHUNK, verify="first")
            for c, t in zip(clients, [*sent, got], strict=True)
        )
    )
    for _ in range(3):  # the first is compared, the others are not
        got.zero_()
        moves = [lambda h=h: h.transfer("send", True) for h in handles[:2]]
        together(*moves, lambda: handles[2].transfer("recv", True))
        assert torch.equal(got, sent[0] + sent[1])
