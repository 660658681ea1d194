"""tensorbus.Endpoint between real processes."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
import tensorbus
import torch
from sources import Source
from tensorbus import Endpoint
from tensorbus.kvstore import StoreServer, connect

BIG = "[torch.arange(30_000_000, dtype=torch.float32)]"


@pytest.fixture
def endpoint():
    with Endpoint(name="reader") as endpoint:
        yield endpoint


@pytest.mark.parametrize(
    ("tensors", "path"),
    [
        ("[torch.arange(1000.)]", "process_vm_readv"),
        ("[share_(torch.arange(1000.))]", "mapped"),
        ("[share_(torch.arange(12000.).reshape(3, 4, 1000)).transpose(0, 2)[::2]]", "mapped"),
        ("[torch.arange(12000).reshape(3, 4, 1000).transpose(0, 2)[::2]]", "process_vm_readv"),
        ("[torch.arange(100).to(torch.bfloat16), torch.tensor(5), torch.ones(0, 3)]", None),
        ("[torch.nn.Parameter(torch.ones(3)), torch.tensor([True, False])]", None),
        ("[]", None),
    ],
)
def test_tensors_of_another_process(endpoint, start_python, tensors, path):
    expected = eval(tensors, {"torch": torch, "share_": tensorbus.share_})
    source = Source(start_python, tensors)
    read = endpoint.start_read(source.descriptor)
    received = read.wait(timeout=30)
    assert len(received) == len(expected)
    for mine, theirs in zip(received, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    if path is not None:
        assert read.path == path
        assert endpoint.stats()["paths"][path]["reads"] == 1


def test_frozen_tensors_are_not_copied(endpoint):
    with Endpoint(name="source") as source:
        numbers = tensorbus.share_(torch.arange(12000.0).reshape(3, 4000))
        frozen = source.expose([numbers, numbers.t()[1:], torch.ones(0)], frozen=True)
        read = endpoint.start_read(frozen)
        whole, part, empty = read.wait(timeout=30)
        assert read.path == "alias"
        assert torch.equal(whole, numbers)
        assert torch.equal(part, numbers.t()[1:])
        assert empty.shape == (0,)
        whole.zero_()  # its own pages from now on
        assert numbers[1, 1] == 4001
        (array, *_) = endpoint.start_read(frozen, torch=False).wait(timeout=30)
        assert np.array_equal(array, numbers.numpy())
        targets = [torch.zeros(3, 4000), torch.zeros(3999, 3), torch.zeros(0)]
        assert torch.equal(endpoint.read(frozen, targets, timeout=30)[0], numbers)
        with pytest.raises(ValueError, match="tensor 0 is not in the pool"):
            source.expose([torch.ones(3)], frozen=True)


def test_targets_are_filled_in_place_and_converted(endpoint, start_python):
    source = Source(start_python, "[share_(torch.arange(6.).reshape(2, 3)), torch.arange(4)]")
    first = torch.zeros(3, 2, dtype=torch.bfloat16)
    targets = [first.t(), np.zeros(4, dtype=np.int64)]
    received = endpoint.read(source.descriptor, targets, timeout=30)
    assert received[0] is targets[0]
    assert received[1] is targets[1]
    assert first.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert targets[1].tolist() == [0, 1, 2, 3]


def test_bad_targets_are_value_errors(endpoint):
    descriptor = endpoint.expose([torch.zeros(3)])
    assert tensorbus.endpoint.describe(descriptor) == [("float32", (3,))]
    for bad in ([], [torch.zeros(4)], [torch.zeros(1).expand(3)], ["text"]):
        with pytest.raises(ValueError, match="target"):
            endpoint.read(descriptor, bad)
    frozen = np.zeros(3, dtype=np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        endpoint.read(descriptor, [frozen])


def test_without_torch_numpy_is_given(start_python):
    script = """
import sys
import numpy as np
import tensorbus
with tensorbus.Endpoint() as endpoint:
    descriptor = endpoint.expose([np.arange(6).reshape(2, 3), tensorbus.empty((0, 2), "int8")])
    first, second = endpoint.read(descriptor, timeout=30)
    assert isinstance(first, np.ndarray) and first.tolist() == [[0, 1, 2], [3, 4, 5]]
    first[0, 0] = 9
    assert second.shape == (0, 2) and second.dtype == np.int8
    descriptor = endpoint.expose([np.float16([1, 2]), np.array([1j]), np.array(True)])
    assert [x.dtype.name for x in endpoint.read(descriptor)] == ["float16", "complex128", "bool"]
assert "torch" not in sys.modules
print("well")
"""
    assert start_python(script).line() == "well"


def test_reads_can_be_awaited(endpoint, start_python):
    source = Source(start_python, BIG)
    targets = [torch.zeros(30_000_000) for _ in range(3)]

    async def read_all():
        reads = [endpoint.read_async(source.descriptor, [target]) for target in targets]
        shared = endpoint.start_read(source.descriptor)
        return await asyncio.gather(*reads, _result(shared), _result(shared))

    async def _result(read):
        return await read

    results = asyncio.run(read_all())
    for target in targets:
        assert target[-1] == 29_999_999
    assert results[3][0] is results[4][0]


def test_an_awaited_read_can_be_cancelled(endpoint, start_python):
    source = Source(start_python, BIG)
    source.process.signal(signal.SIGSTOP)

    async def give_up():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(endpoint.read_async(source.descriptor), timeout=0.2)
        with pytest.raises(TimeoutError, match=r"source \(pid"):
            await endpoint.read_async(source.descriptor, timeout=0.2)

    asyncio.run(give_up())


def test_other_threads_run_during_a_read(endpoint, start_python):
    source = Source(start_python, BIG)
    source.process.signal(signal.SIGSTOP)
    ticks = 0
    stop = threading.Event()

    def tick():
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            endpoint.read(source.descriptor, timeout=0.5)
    finally:
        stop.set()
        thread.join()
    assert ticks > 20


def test_a_dropped_read_ends_and_frees(endpoint, start_python):
    source = Source(start_python, BIG)
    lent_before = tensorbus.pool.use()["lent"]
    for _ in range(5):
        read = endpoint.start_read(source.descriptor)
        del read
    gc.collect()
    assert tensorbus.pool.use()["lent"] == lent_before
    assert endpoint.read(source.descriptor)[0][-1] == 29_999_999


def test_tensors_live_until_they_are_released(endpoint):
    with Endpoint() as reader:
        tensor = torch.arange(100_000.0)
        descriptor = endpoint.expose([tensor])
        expected = tensor.clone()
        count = sys.getrefcount(tensor)
        del tensor
        gc.collect()
        assert torch.equal(reader.read(descriptor)[0], expected)
        assert endpoint.stats()["exposures"] == 1
        assert count >= 3
        assert endpoint.release(descriptor)
        assert not endpoint.release(descriptor)
        with pytest.raises(tensorbus.WithdrawnError, match="pid"):
            reader.read(descriptor)


def test_many_tensors_come_in_one_call(endpoint, start_python):
    source = Source(start_python, "[share_(torch.full((16, 16), float(i))) for i in range(2000)]")
    received = endpoint.read(source.descriptor, timeout=30)
    assert [tensor[3, 3].item() for tensor in received] == list(range(2000))


def test_a_store_gives_the_secret(store_server: StoreServer, unique):
    url = f"{store_server.url}/{unique}"
    with connect(url) as store, Endpoint(store) as source, Endpoint(url) as reader:
        descriptor = source.expose([torch.arange(3)])
        assert reader.read(descriptor)[0].tolist() == [0, 1, 2]
        with (
            Endpoint(f"{store_server.url}/other-{unique}") as stranger,
            pytest.raises(tensorbus.AuthenticationError, match="secret"),
        ):
            stranger.read(descriptor)
        with pytest.raises(tensorbus.AuthenticationError), Endpoint() as stranger:
            stranger.read(descriptor)
    with pytest.raises(ValueError, match="not both"):
        Endpoint(url, secret="x")


def test_bad_descriptors_are_refused_with_their_reason(endpoint):
    with pytest.raises(ValueError, match="not a descriptor"):
        endpoint.read(b"nonsense")
    with Endpoint(secret="a-secret-to-be-changed") as source:
        descriptor = source.expose([torch.zeros(3)])
        forged = descriptor.replace(b"a-secret-to-be-changed", b"a-secret-to-be-guessed")
        with pytest.raises(tensorbus.AuthenticationError, match="secret"):
            endpoint.read(forged)
        with pytest.raises(ValueError, match="version"):
            endpoint.read(
                descriptor.replace(b"tensorbus descriptor\x02", b"tensorbus descriptor\x03")
            )
        for cut in range(0, len(descriptor), 7):
            with pytest.raises(ValueError, match="descriptor"):
                endpoint.read(descriptor[:cut])
        with pytest.raises(ValueError, match="another endpoint"):
            endpoint.release(descriptor)
    with pytest.raises(ConnectionError, match="pid"):
        endpoint.read(descriptor)  # its owner is closed


def test_a_closed_endpoint_says_so():
    endpoint = Endpoint()
    descriptor = endpoint.expose([torch.zeros(3)])
    endpoint.close()
    endpoint.close()
    for call in (lambda: endpoint.expose([]), lambda: endpoint.read(descriptor)):
        with pytest.raises(tensorbus.CancelledError, match="closed"):
            call()


def test_an_address_that_is_not_here_is_refused():
    with pytest.raises(ValueError, match=r"203\.0\.113\.7"):
        Endpoint(bind="203.0.113.7")


def test_an_idle_pair_costs_nothing(endpoint, start_python):
    source = Source(start_python, "[torch.zeros(3)]")
    endpoint.read(source.descriptor)

    def used() -> float:
        with open(f"/proc/{source.process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    time.sleep(0.2)
    before = used()
    time.sleep(2)
    assert used() - before <= 0.06, "an idle loop that spins would have used 2 s"
