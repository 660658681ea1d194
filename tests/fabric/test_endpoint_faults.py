"""What an endpoint says when processes die, stop, fork and are interrupted."""

import os
import signal
import time

import pytest
import tensorbus
import torch
from processes import Start
from sources import Source
from tensorbus import Endpoint

BIG = "[torch.arange(30_000_000, dtype=torch.float32)]"


@pytest.fixture
def endpoint():
    with Endpoint(name="reader") as endpoint:
        yield endpoint


@pytest.mark.parametrize("connected", [False, True])
def test_a_killed_source_is_named_within_two_seconds(endpoint, start_python: Start, connected):
    source = Source(start_python, BIG)
    if connected:
        endpoint.read(source.descriptor)
    source.process.signal(signal.SIGSTOP)
    read = None if connected else endpoint.start_read(source.descriptor)
    source.process.kill()
    killed = time.monotonic()
    with pytest.raises((tensorbus.PeerLostError, ConnectionError), match=r"source \(pid"):
        (endpoint.start_read(source.descriptor) if read is None else read).wait(10)
    assert time.monotonic() - killed < 2
    other = Source(start_python, "[torch.ones(3)]")
    assert endpoint.read(other.descriptor)[0].sum() == 3


def test_a_source_killed_during_a_read(endpoint, start_python: Start):
    source = Source(start_python, "[torch.zeros(500_000_000, dtype=torch.int8)]")
    target = torch.zeros(500_000_000, dtype=torch.int8)
    read = endpoint.start_read(source.descriptor, [target])
    while not read.path:
        time.sleep(0.001)
    source.process.kill()
    killed = time.monotonic()
    with pytest.raises(tensorbus.PeerLostError, match=r"source \(pid"):
        read.wait(10)
    assert time.monotonic() - killed < 2


@pytest.mark.parametrize("tensors", ["[torch.zeros(8_000_000)]", "[empty(8_000_000).zero_()]"])
def test_what_is_overwritten_is_never_received(endpoint, start_python: Start, tensors):
    source = Source(start_python, tensors)
    target = torch.empty(8_000_000)
    endpoint.read(source.descriptor, [target])
    read = endpoint.start_read(source.descriptor, [target])
    source.tell("release")
    source.tell("overwrite")
    try:
        read.wait(10)
    except tensorbus.WithdrawnError:
        with pytest.raises(tensorbus.WithdrawnError):
            endpoint.read(source.descriptor)
    else:
        assert target.count_nonzero() == 0


def test_a_stopped_source_and_cancel(endpoint, start_python: Start):
    source = Source(start_python, BIG)
    source.process.signal(signal.SIGSTOP)
    read = endpoint.start_read(source.descriptor)
    with pytest.raises(TimeoutError):
        read.wait(0.1)
    assert not read.done()
    read.cancel()
    with pytest.raises(tensorbus.CancelledError, match="source"):
        read.wait(5)
    assert read.done()
    source.process.signal(signal.SIGCONT)
    assert endpoint.read(source.descriptor, timeout=30)[0][-1] == 29_999_999


def test_ctrl_c_ends_a_read(start_python: Start):
    source = Source(start_python, BIG)
    source.process.signal(signal.SIGSTOP)
    reader = start_python(
        """
import sys, numpy, tensorbus  # numpy now: an import that Ctrl-C ends is an ImportError
with tensorbus.Endpoint() as endpoint:
    print("reading")
    try:
        endpoint.read(bytes.fromhex(sys.argv[1]))
    except KeyboardInterrupt:
        print("interrupted")
""",
        source.descriptor.hex(),
    )
    assert reader.line() == "reading"
    time.sleep(0.3)
    reader.signal(signal.SIGINT)
    assert reader.line(timeout=5) == "interrupted"
    assert reader.wait() == 0


def test_a_process_out_of_descriptors_is_told_and_goes_on_later(start_python: Start):
    source = Source(start_python, "[torch.ones(3)]")
    reader = start_python(
        """
import os, resource, sys, tensorbus
with tensorbus.Endpoint() as endpoint:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
    try:
        endpoint.read(bytes.fromhex(sys.argv[1]), timeout=20)
    except Exception as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(endpoint.read(bytes.fromhex(sys.argv[1]), timeout=20)[0].sum())
""",
        source.descriptor.hex(),
    )
    assert "Too many open files" in reader.line()
    assert float(reader.line()) == 3
    assert reader.wait() == 0, reader.errors


def test_a_forked_child_is_refused_and_can_make_its_own(endpoint):
    descriptor = endpoint.expose([torch.arange(3)])
    own = tensorbus.empty(3, "int64")
    endpoint.read(descriptor, [own])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="fork"):
                endpoint.read(descriptor)
            with pytest.raises(RuntimeError, match="fork"):
                endpoint.expose([own])
            del own
            with Endpoint() as fresh:
                code = 0 if fresh.read(descriptor)[0].tolist() == [0, 1, 2] else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert endpoint.read(descriptor)[0].tolist() == [0, 1, 2]


def test_the_interpreter_ends_cleanly_with_everything_open(start_python: Start):
    source = Source(start_python, BIG)
    careless = start_python(
        """
import sys, torch, tensorbus
endpoint = tensorbus.Endpoint()
kept = endpoint.expose([torch.zeros(3)])
reads = [endpoint.start_read(bytes.fromhex(sys.argv[1])) for _ in range(5)]
print("leaving")
""",
        source.descriptor.hex(),
    )
    assert careless.line() == "leaving"
    assert careless.wait() == 0, careless.errors
    assert careless.errors == ""


def test_nothing_is_left_of_many_endpoints(start_python: Start):
    source = Source(start_python, "[torch.zeros(3), share_(torch.ones(3))]")

    def once():
        with Endpoint() as reader:
            assert reader.read(source.descriptor)[1].sum() == 3

    once()
    before = len(os.listdir("/proc/self/fd")), source.process.open_descriptors()
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(30):
        once()
    assert len(os.listdir("/proc/self/fd")) == before[0]
    assert len(os.listdir("/proc/self/task")) == threads
    deadline = time.monotonic() + 5
    while source.process.open_descriptors() > before[1] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert source.process.open_descriptors() <= before[1]
