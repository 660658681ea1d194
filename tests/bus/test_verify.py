"""Checksums: what was read is compared with what was offered."""

import pytest
import tensorbus
import torch
from buses import Bus, caught, together
from tensorbus import BatchHandler, Replicate, Shard

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
