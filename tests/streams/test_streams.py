"""tensorbus.streams between real processes."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import stream_member
import tensorbus
import torch
from processes import PROGRAM, Process, Start, eventually
from tensorbus.kvstore import StoreServer, connect
from tensorbus.streams import Receiver, Sender
from tensorbus.streams.board import LEASE_SECONDS
from two_hosts import ADDRESSES, TwoHosts

MEMBER = str(Path(stream_member.__file__))
StartMember = Callable[..., Process]

# Every process of a stream imports torch.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def url(store_server: StoreServer, unique: str) -> str:
    return f"{store_server.url}/{unique}"


@pytest.fixture
def start_member(start_program: Start, url: str) -> StartMember:
    def start(role: str, *arguments: object) -> Process:
        texts = [str(argument) for argument in arguments]
        process = start_program(sys.executable, "-u", MEMBER, role, url, *texts)
        assert process.line(120) == "here"
        return process

    return start


def some(count: int = 6, elements: int = 700) -> dict[str, torch.Tensor]:
    return {f"t{number}": torch.full((elements,), float(number)) for number in range(count)}


def received_by(url: str, member: str, results: dict, **options) -> threading.Thread:
    """A receiver of one version on a thread."""

    def run() -> None:
        try:
            with Receiver(url, "policy", member, timeout=20.0) as receiver:
                results[member] = {
                    name: tensor.clone() for name, tensor in receiver.receive(**options)
                }
        except Exception as error:
            results[member] = error

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.proves("G2.1")
def test_senders_share_buckets_and_receivers_learn_everything(start_member: StartMember):
    receivers = [
        start_member("receive", "a"),
        start_member("receive", "b", "async"),
        start_member("receive", "c"),
    ]
    senders = [start_member("send", index, 2, "a,b,c") for index in range(2)]
    for version in (1, 2, 7):
        for process in senders:
            process.tell(str(version))
        for process in receivers:
            process.tell("")
        sent = [process.line(60).split() for process in senders]
        assert sent[0] == sent[1]
        assert sent[0][:3] == ["sent", str(version), str(len(stream_member.tensors(1)))]
        assert int(sent[0][3]) > 3, "it takes several buckets"
        for process in receivers:
            # All on one host: nobody has copied anything.
            assert process.line(60) == f"{version} {sent[0][2]} True alias"


@pytest.mark.proves("G2.1")
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_receivers_on_another_host_read_the_same(start_program: Start):
    hosts = TwoHosts(start_program)

    def start(host: int, *command: str) -> Process:
        environment = {"TENSORBUS_BIND": ADDRESSES[host]}
        return start_program(*hosts.on(host), *command, env=environment)

    server = start(0, str(PROGRAM), "store", "--host", ADDRESSES[0], "--port", "0")
    url = f"tensorbus://{ADDRESSES[0]}:{server.line(60).rsplit(':', 1)[1]}/job"
    here = start(0, sys.executable, "-u", MEMBER, "receive", url, "here")
    there = start(1, sys.executable, "-u", MEMBER, "receive", url, "there", "async")
    sender = start(0, sys.executable, "-u", MEMBER, "send", url, "0", "1", "here,there")
    for process in (here, there, sender):
        assert process.line(120) == "here"
    sender.tell("1")
    here.tell("1")
    there.tell("1")
    tensors = len(stream_member.tensors(1))
    assert sender.line(60).startswith(f"sent 1 {tensors}")
    assert here.line(60) == f"1 {tensors} True alias"
    assert there.line(60) == f"1 {tensors} True network"


@pytest.mark.proves("G2.1")
def test_a_sender_has_no_more_buckets_than_its_depth(url: str):
    made = []

    def tensors():
        for number in range(12):
            made.append(number)
            yield f"t{number}", torch.full((1000,), float(number))

    lent_before = tensorbus.pool.use()["lent"]
    with (
        Sender(url, "policy", bucket_bytes=4096, depth=3, timeout=20.0) as sender,
        Receiver(url, "policy", "slow", timeout=20.0) as receiver,
    ):
        thread = threading.Thread(target=lambda: sender.send(tensors(), ["slow"]))
        thread.start()
        stream = receiver.receive()
        next(stream)
        # Three that nobody has taken, and the tensor that does not fit any more.
        eventually(lambda: len(made) >= 4, "the fourth tensor")
        thread.join(0.2)
        assert made == [0, 1, 2, 3]
        assert tensorbus.pool.use()["lent"] - lent_before <= 3 * 4096 + 4096
        assert sum(1 for _ in stream) == 11
        thread.join()
    gc.collect()
    assert tensorbus.pool.use()["lent"] == lent_before


@pytest.mark.proves("G2.1")
def test_kept_tensors_stay_as_they_were_and_are_the_receivers_own(url: str):
    with (
        Sender(url, "policy", bucket_bytes=4096, timeout=20.0) as sender,
        Receiver(url, "policy", "a", timeout=20.0) as receiver,
    ):
        kept = []
        for version in range(1, 4):
            values = some() | {"version": torch.tensor(version)}
            thread = threading.Thread(target=lambda v=values: sender.send(v.items(), ["a"]))
            thread.start()
            kept.append(dict(receiver.receive()))
            kept[-1]["t0"].fill_(-1)
            thread.join()
        assert [each["version"].item() for each in kept] == [1, 2, 3]
        assert all(each["t5"].unique().tolist() == [5.0] for each in kept)


def test_types_can_be_narrowed_and_nothing_may_be_sent(url: str):
    results: dict = {}
    thread = received_by(url, "a", results)
    with Sender(url, "policy", dtype=torch.bfloat16, timeout=20.0) as sender:
        mixed = {"weight": torch.tensor([1.5, 2.0]), "ids": torch.tensor([1 << 40])}
        sent = sender.send(mixed.items(), ["a"])
        thread.join()
        assert sent == (1, 2, 1, 12)
        assert results["a"]["weight"].dtype == torch.bfloat16
        assert results["a"]["ids"].item() == 1 << 40
        thread = received_by(url, "b", results)
        assert sender.send(iter(()), ["b"]) == (2, 0, 1, 0)
        thread.join()
        assert results["b"] == {}


@pytest.mark.proves("G2.3")
def test_a_receiver_that_does_not_come_is_named(url: str):
    results: dict = {}
    thread = received_by(url, "there", results, version=1)
    left = []
    with Sender(url, "policy", bucket_bytes=4096, depth=1, timeout=1.0) as sender:
        items = some().items()
        with pytest.raises(TimeoutError, match="absent never came") as error:
            sender.send((left.append(name) or (name, tensor) for name, tensor in items),
                        ["there", "absent"])  # fmt: skip
        assert "there" not in str(error.value)
        assert len(left) == 6, "the other senders need this one until the end"
        thread.join()
        # Whoever was there is told why.
        assert isinstance(results["there"], RuntimeError)
        assert "gave up version 1: TimeoutError" in str(results["there"])
        # The next version works without who was missing.
        thread = received_by(url, "there", results)
        assert sender.send(items, ["there"]).version == 2
        thread.join()
        assert results["there"]["t3"].unique().tolist() == [3.0]


@pytest.mark.proves("G2.3")
def test_a_killed_receiver_is_named_and_the_others_go_on_without_it(start_member: StartMember):
    receivers = {name: start_member("receive", name) for name in ("a", "b")}
    both = [start_member("send", index, 2, "a,b", "slow") for index in range(2)]
    for process in [*both, *receivers.values()]:
        process.tell("1")
    for process in both:
        assert process.line(60) == "in the middle"
    receivers["b"].kill()
    killed = time.monotonic()
    for process in both:
        line = process.line(60)
        assert line.startswith("PeerLostError receivers of"), line
        assert "are gone: b;" in line
    # With the time that a lease lives and what the slow iterator still makes.
    assert time.monotonic() - killed < 20
    assert receivers["a"].line(60).startswith("RuntimeError sender ")
    for process in both:
        process.kill()
    alone = start_member("send", 0, 1, "a")
    alone.tell("1")
    receivers["a"].tell("")
    assert alone.line(60).startswith("sent 1 ")
    assert receivers["a"].line(60).endswith("True alias")


@pytest.mark.proves("G2.3")
def test_a_killed_sender_is_named(start_member: StartMember):
    receiver = start_member("receive", "a")
    senders = [start_member("send", index, 2, "a", "slow") for index in range(2)]
    for process in [*senders, receiver]:
        process.tell("1")
    for process in senders:
        assert process.line(60) == "in the middle"
    senders[1].kill()
    line = receiver.line(60)
    assert line.startswith("PeerLostError senders of"), line
    assert "are gone: 1;" in line
    assert senders[0].line(60).startswith("RuntimeError receiver a of")


def test_a_receiver_that_stops_early_ends_the_send(url: str):
    with (
        Sender(url, "policy", bucket_bytes=4096, depth=1, timeout=20.0) as sender,
        Receiver(url, "policy", "a", timeout=20.0) as receiver,
    ):
        failed: list = []

        def send() -> None:
            try:
                sender.send(some().items(), ["a"])
            except RuntimeError as error:
                failed.append(str(error))

        thread = threading.Thread(target=send)
        thread.start()
        stream = receiver.receive()
        next(stream)
        stream.close()
        thread.join()
        assert "receiver a" in failed[0]
        assert "it stopped before the end" in failed[0]
        thread = threading.Thread(target=send)
        thread.start()
        assert len(dict(receiver.receive())) == 6
        thread.join()
        assert len(failed) == 1


def test_an_awaited_receive_can_be_cancelled(url: str):
    async def give_up(receiver: Receiver) -> None:
        async for _ in receiver.receive_async():
            raise AssertionError("nobody sends")

    async def main() -> None:
        with Receiver(url, "policy", "a", timeout=20.0) as receiver:
            task = asyncio.create_task(give_up(receiver))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    before = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - before < 10


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([("a", torch.ones(2)), ("a", torch.ones(2))], '"a" comes twice'),
        ([("a", [1.0])], '"a" is no torch tensor but list'),
        ([(3, torch.ones(2))], "which is no text"),
        ([("a", torch.ones(2).to_sparse())], '"a" has no plain memory'),
        ([("a", torch.ones(2, device="meta"))], '"a" has no plain memory'),
    ],
)
def test_what_cannot_be_sent_is_a_value_error_and_receivers_hear_of_it(url, bad, message):
    results: dict = {}
    thread = received_by(url, "a", results, version=1)
    with Sender(url, "policy", timeout=20.0) as sender:
        with pytest.raises(ValueError, match=message):
            sender.send(iter(bad), ["a"])
        thread.join()
        assert isinstance(results["a"], RuntimeError)
        assert message.split('"')[-1].strip() in str(results["a"])
        thread = received_by(url, "a", results)
        sender.send(some().items(), ["a"])
        thread.join()
        assert len(results["a"]) == 6


def test_an_iterator_that_raises_ends_the_version(url: str):
    def broken():
        yield "a", torch.ones(3)
        raise ZeroDivisionError("the model")

    results: dict = {}
    thread = received_by(url, "a", results, version=1)
    with Sender(url, "policy", timeout=20.0) as sender:
        with pytest.raises(ZeroDivisionError):
            sender.send(broken(), ["a"])
        thread.join()
        assert "ZeroDivisionError: the model" in str(results["a"])


def test_bad_arguments_are_value_errors(url: str):
    for options in ({"index": 2, "senders": 2}, {"bucket_bytes": 0}, {"depth": 0}):
        with pytest.raises(ValueError, match=r"sender 2 of 2|buckets of"):
            Sender(url, "policy", **options)
    with pytest.raises(ValueError, match='without "/"'):
        Sender(url, "a/b")
    with pytest.raises(ValueError, match='without "/"'):
        Receiver(url, "policy", "")
    with Sender(url, "policy", timeout=1.0) as sender:
        for receivers in ([], ["a", "a"]):
            with pytest.raises(ValueError, match="each once"):
                sender.send(iter(()), receivers)
        with pytest.raises(ValueError, match="version 0 of a stream that is at 0"):
            sender.send(iter(()), ["a"], version=0)


def test_nobody_sends_is_a_timeout_error_that_says_so(url: str):
    with Receiver(url, "policy", "a", timeout=0.3) as receiver:
        with pytest.raises(TimeoutError, match=r'a of "policy" waited 0\.3 s for a version'):
            next(receiver.receive())
        with pytest.raises(TimeoutError, match="for bucket 0 of version 4"):
            next(receiver.receive(version=4))


@pytest.mark.parametrize("forged", ["nonsense", "[]", '{"id": 5}', '{"sender": 0, "names": [1]}'])
def test_what_strangers_write_to_the_store_does_no_harm(url: str, forged: str):
    with (
        connect(url, component="streams") as store,
        Receiver(url, "policy", "a", timeout=1.0) as receiver,
    ):
        store.set("policy/s/bucket/x/0", forged)
        store.set("policy/s/here", forged)
        store.set("policy/s/bucket/3/0", forged)
        with pytest.raises((RuntimeError, TimeoutError), match=r"no sender has written|waited"):
            next(receiver.receive())


@pytest.mark.long
def test_a_receiver_that_stood_still_comes_back(start_member: StartMember):
    receiver = start_member("receive", "a")
    receiver.signal(signal.SIGSTOP)
    time.sleep(LEASE_SECONDS + 1)  # its lease lapses
    receiver.signal(signal.SIGCONT)
    sender = start_member("send", 0, 1, "a")
    sender.tell("1")
    receiver.tell("1")
    assert sender.line(60).startswith("sent 1")
    assert receiver.line(60).endswith("True alias")
