"""Deaths, stops and aborts between Ray actors."""

import gc
import os
import shutil
import signal
import tempfile
import time
from contextlib import contextmanager

import pytest
import ray
import tensorbus.ray
import torch
from processes import eventually, is_stopped
from ray_cluster import SETTINGS, elsewhere, metadata

pytestmark = [
    pytest.mark.timeout(120),
    # Ray's own thread that watches transfers may meet the next cluster.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

BIG = "torch.ones(60_000_000)"
NAMED_WITHIN = 2.0  # seconds after the death, or after the call if that comes later


def still_receives(worker):
    ref = ray.put(torch.ones(3), _tensor_transport="TENSORBUS")
    return ray.get(worker.sums.remote(ref)) == [3.0]


def has_ended(pid):
    return not os.path.exists(f"/proc/{pid}")


@contextmanager
def stopped(pid):
    """All processes of these tests are on this machine, whatever their node."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: is_stopped(pid), "it to stop")
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.proves("R6")
@pytest.mark.parametrize("met_before", [True, False])
def test_a_dead_source_is_named_soon(start_worker, sink, met_before):
    name = f"the_source_that_dies_{met_before}"
    source = start_worker("there", name=name)
    refs = ray.get(source.put.remote(BIG))
    ref = source.make.remote(BIG)
    pid = ray.get(source.pid.remote())
    meta = metadata(ref)
    transport = tensorbus.ray.TensorBusTransport()
    assert still_receives(sink)  # the endpoint of this process runs
    if met_before:
        transport.recv_multiple_tensors("alive", meta, None)
    ray.kill(source)
    eventually(lambda: has_ended(pid), "the source to die")
    called = time.monotonic()
    with pytest.raises(ray.exceptions.RayDirectTransportError, match=name):
        transport.recv_multiple_tensors("dead", meta, None)
    assert time.monotonic() - called < NAMED_WITHIN
    with pytest.raises(ray.exceptions.RayDirectTransportError, match=name):
        ray.get(sink.sums.remote(ref), timeout=20)
    # The owner of this ref died too. Ray finds that out in its own time, perhaps before us.
    outcome, _ = ray.get(sink.timed_get.remote(refs, 20))
    assert name in outcome or "OwnerDiedError" in outcome
    assert still_receives(sink)


@pytest.mark.proves("R6")
def test_a_source_killed_during_the_read(start_worker, sink):
    source = start_worker("there", name="the_source_in_midstream")
    ref = source.make.remote("torch.ones(250_000_000)")
    meta = metadata(ref)
    pid = ray.get(source.pid.remote())
    transport = tensorbus.ray.TensorBusTransport()
    fetch = transport.fetch_multiple_tensors("killed", meta, None)
    eventually(lambda: fetch.read.path, "the first bytes", pause=0.001)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    try:
        (tensor,) = transport.wait_fetch_complete(fetch, timeout=20)
        outcome = None
    except ray.exceptions.RayDirectTransportError as error:
        outcome = str(error)
    assert time.monotonic() - killed < NAMED_WITHIN
    if outcome is None:  # the last bytes were faster
        assert tensor.sum().item() == 250_000_000.0
    else:
        assert "the_source_in_midstream" in outcome
    assert still_receives(sink)


@pytest.mark.proves("R6")
def test_a_dead_destination_disturbs_nobody(start_worker, source, sink):
    doomed = start_worker("here")
    ref = source.make.remote(BIG)
    receiving = doomed.sums.remote(ref)
    ray.kill(doomed)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(receiving, timeout=60)
    assert ray.get(sink.sums.remote(ref)) == [60_000_000.0]
    ray.get(source.drop.remote())


@pytest.mark.proves("R8")
def test_the_death_of_a_reader_frees_what_it_aliased(start_worker, source):
    reader = start_worker("here")
    refs = ray.get(source.put_frozen.remote("torch.ones(5_000_000)"))
    ray.get(reader.keep.remote(refs[0]))
    held = ray.get(source.stats.remote())["pool"]["lent"]
    del refs
    gc.collect()
    ray.kill(reader)
    eventually(
        lambda: ray.get(source.stats.remote())["pool"]["lent"] <= held - 20_000_000,
        "the block to come back to the pool",
    )


@pytest.mark.proves("R4")
def test_a_short_timeout_on_a_stopped_source(start_worker, sink):
    source = start_worker("there", name="the_stopped_source")
    refs = ray.get(source.put.remote(BIG))
    ref = source.make.remote(BIG)
    meta = metadata(ref)
    with stopped(ray.get(source.pid.remote())):
        outcome, seconds = ray.get(sink.timed_get.remote(refs, 1.0))
        assert "GetTimeoutError" in outcome
        assert seconds < 5.0  # the read itself would be given up after six
        transport = tensorbus.ray.TensorBusTransport()
        fetch = transport.fetch_multiple_tensors("stopped", meta, None)
        with pytest.raises(TimeoutError):
            transport.wait_fetch_complete(fetch, timeout=0)
        with pytest.raises(ray.exceptions.RayDirectTransportError, match="the_stopped_source"):
            transport.wait_fetch_complete(fetch)
    assert still_receives(sink)


@pytest.mark.proves("R4", "R5")
def test_aborted_and_dropped_receives(start_worker):
    source = start_worker("there")
    ref = source.make.remote(BIG)
    meta = metadata(ref)
    transport = tensorbus.ray.TensorBusTransport()
    with stopped(ray.get(source.pid.remote())):
        lent = tensorbus.ray.stats()["pool"]["lent"]
        fetch = transport.fetch_multiple_tensors("aborted", meta, None)
        transport.abort_transport("aborted", None)
        with pytest.raises(ray.exceptions.RayDirectTransportError, match="cancelled"):
            transport.wait_fetch_complete(fetch, timeout=20)
        # Dropped without a wait: nothing is left of it.
        dropped = transport.fetch_multiple_tensors("dropped", meta, None)
        del fetch, dropped
        assert tensorbus.ray.stats()["pool"]["lent"] <= lent


@pytest.mark.proves("R5")
@pytest.mark.usefixtures("cluster")
def test_aborts_before_the_receive_and_at_the_source():
    transport = tensorbus.ray.TensorBusTransport()
    meta = transport.extract_tensor_transport_metadata("source", [torch.ones(3)])
    transport.abort_transport("source", None)  # at the source: others may still read
    assert transport.recv_multiple_tensors("elsewhere", meta, None)[0].sum() == 3
    transport.abort_transport("early", None)
    with pytest.raises(ray.exceptions.RayDirectTransportError, match="aborted"):
        transport.recv_multiple_tensors("early", meta, None)
    assert transport.recv_multiple_tensors("early", meta, None)[0].sum() == 3
    for number in range(20_000):  # remembered, but not all
        transport.abort_transport(f"unknown {number}", None)
    assert transport.recv_multiple_tensors("unknown 0", meta, None)[0].sum() == 3
    with pytest.raises(ray.exceptions.RayDirectTransportError, match="aborted"):
        transport.recv_multiple_tensors("unknown 19999", meta, None)
    transport.garbage_collect("source", meta, [])


@pytest.mark.proves("R12")
def test_a_restarted_actor_works_again(start_worker, sink):
    source = start_worker("there", max_restarts=1, max_task_retries=2)
    assert ray.get(sink.sums.remote(source.make.remote("torch.ones(3)"))) == [3.0]
    pid = ray.get(source.pid.remote())
    ray.kill(source, no_restart=False)
    eventually(lambda: answers(source, pid), "the restart", timeout=60)
    refs = ray.get(source.put.remote("torch.ones(4)"))
    assert ray.get(sink.get.remote(refs))[2] == (4,)
    assert ray.get(sink.sums.remote(source.make.remote("torch.ones(5)"))) == [5.0]


def answers(actor, old_pid):
    try:
        return ray.get(actor.pid.remote(), timeout=5) != old_pid
    except ray.exceptions.RayError:
        return False


@pytest.mark.proves("R7")
def test_descriptors_do_not_pile_up(source, sink):
    for _ in range(3):
        ray.get(sink.sums.remote(source.make.remote("torch.ones(10)")))
    before = ray.get([source.descriptors.remote(), sink.descriptors.remote()])
    for _ in range(30):
        ray.get(sink.sums.remote(source.make.remote("torch.ones(10)")))
    after = ray.get([source.descriptors.remote(), sink.descriptors.remote()])
    assert all(now <= then + 5 for now, then in zip(after, before, strict=True))


@pytest.mark.skipif(elsewhere(), reason="it has a cluster of its own")
@pytest.mark.proves("R12")
def test_shutdown_with_transfers_in_flight(start_python):
    """And the second ``ray.init`` of a driver, which has none of what it put before."""
    script = """
import sys
import ray, torch, tensorbus.ray
from actors import Worker

options = dict(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
               _temp_dir=sys.argv[1], object_store_memory=100 << 20)
ray.init(**options)
kept = ray.put(torch.ones(3), _tensor_transport="TENSORBUS")
ray.shutdown()
ray.init(**options)
mine = ray.put(torch.ones(50_000_000), _tensor_transport="TENSORBUS")
print(tensorbus.ray.stats()["exposures"], flush=True)
source, sink = Worker.options(num_cpus=0).remote(), Worker.options(num_cpus=0).remote()
refs = [sink.sums.remote(mine), sink.sums.remote(source.make.remote("torch.ones(50_000_000)"))]
ray.shutdown()
print("down", flush=True)
"""
    folder = tempfile.mkdtemp(prefix="tbray", dir="/tmp")
    # Ray's own thread that watches transfers may ask for one after the shutdown, which would begin
    # Ray anew.
    settings = SETTINGS | {"RAY_ENABLE_AUTO_CONNECT": "0"}
    try:
        process = start_python(script, folder, env=settings)
        assert process.line(timeout=90) == "1"
        assert process.line(timeout=90) == "down"
        assert process.wait() == 0, process.errors
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.proves("R7")
def test_nothing_is_left_in_shared_memory():
    assert not [name for name in os.listdir("/dev/shm") if "tensorbus" in name]
