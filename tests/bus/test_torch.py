"""torch's own objects: DTensors and meshes, under torchrun and without; Ctrl-C and the GIL."""

import signal
import sys
import threading
import time

import pytest
import torch
from buses import Bus, together
from processes import Start
from tensorbus import Replicate, Shard

TRAINER = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
import tensorbus

url, namespace = sys.argv[1:]
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(3)
whole = torch.randn(7, 4)
weight = distribute_tensor(whole, mesh, [Shard(0)])
rank = int(os.environ["RANK"])
client = tensorbus.TensorBusClient.embedded(url, rank, namespace)
# A mesh of torch's says where each rank is, whatever the agents' ranks are.
client.init_pair("w", "trainers", "engine", 2, mesh, [Shard(0)])
try:
    client.register_tensors("x", [(distribute_tensor(whole, mesh, [Shard(1)]), "w")])
except ValueError as error:
    assert "DTensor" in str(error), error
batch = client.register_tensors("x", [(weight, "w")])
batch.transfer("send", blocking=True)
with torch.no_grad():
    weight.mul_(2.0)
batch.transfer("send", blocking=True)
# The other way, into the DTensor.
batch.transfer("recv", blocking=True)
assert torch.equal(weight.full_tensor(), torch.arange(28.0).reshape(7, 4))
client.close()
dist.destroy_process_group()
"""


@pytest.mark.proves("B3.1", "B3.6")
def test_dtensors_under_torchrun(threads: Bus, start_program: Start, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    trainers = start_program(
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone",
        str(script), threads.url, threads.namespace, env={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    engine = threads.client(5)
    engine.init_pair("w", "engine", "trainers", 1, (1,), [Replicate()], timeout=60)
    got = torch.zeros(7, 4)
    batch = engine.register_tensors("x", [(got, "w")], timeout=60)
    torch.manual_seed(3)
    whole = torch.randn(7, 4)
    for factor in (1.0, 2.0):
        batch.transfer("recv", blocking=True)
        assert torch.equal(got, whole * factor)
    got.copy_(torch.arange(28.0).reshape(7, 4))
    batch.transfer("send", blocking=True)
    assert trainers.wait(60) == 0, trainers.errors


WAITER = """
import sys, tensorbus
url, namespace, what, queue, state = sys.argv[1:]
try:
    if what == "agent":
        host, port = url.removeprefix("tensorbus://").split(":")
        agent = tensorbus.TensorBusAgent(1, 2, host, int(port), queue, state,
                                         store_namespace=namespace)
        print("waiting")
        agent.run()
    client = tensorbus.TensorBusClient.embedded(url, 0, namespace)
    if what == "init_pair":
        print("waiting")
        client.init_pair("p", "a", "nobody", 1, timeout=None)
    import numpy as np
    client.init_pair("p", "a", "b", 1, blocking=False)
    client.init_pair("p", "b", "a", 1)
    import threading
    kept = []
    other = threading.Thread(
        target=lambda: kept.append(client.register_tensors("x", [(np.zeros(3), "p")], role="b")))
    other.start()
    batch = client.register_tensors("x", [(np.ones(3), "p")], role="a")
    other.join()
    sending = batch.transfer("send", blocking=False)
    print("waiting")
    if what == "result":
        sending.result()
    elif what == "acquire":
        sending.acquire()
    elif what == "signal":
        batch.query_transfer_signal(sync_round=9, timeout=None)
    else:
        batch.transfer("send", blocking=True, timeout=None)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.proves("B3.15")
@pytest.mark.parametrize("what", ["init_pair", "send", "result", "acquire", "signal", "agent"])
def test_ctrl_c_ends_every_wait(threads: Bus, start_python: Start, what: str, tmp_path):
    worker = start_python(
        WAITER, threads.url, threads.namespace, what, tmp_path / "q", tmp_path / "s"
    )
    assert worker.line() == "waiting"
    time.sleep(0.2)
    worker.signal(signal.SIGINT)
    assert worker.line(10) == "interrupted"
    assert worker.wait() == 0, worker.errors


def test_other_threads_run_while_one_waits(threads: Bus):
    a = threads.client(0)
    over = threading.Event()

    def wait() -> None:
        with pytest.raises(TimeoutError):
            a.init_pair("p", "a", "b", 1, timeout=0.3)
        over.set()

    thread = threading.Thread(target=wait)
    thread.start()
    turns = 0
    while not over.is_set():
        turns += 1
    thread.join()
    assert turns > 1000


@pytest.mark.proves("B3.6", "B3.9")
def test_parameters_of_a_module_go_by_name(bus: Bus):
    a, b = bus.client(0), bus.client(1)
    torch.manual_seed(1)
    source, target = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    together(
        lambda: a.init_pair("p", "a", "b", 1, (1,), [Shard(0)]),
        lambda: b.init_pair("p", "b", "a", 1, (1,), [Shard(0)]),
    )
    names = [name for name, _ in source.named_parameters()]
    send, recv = together(
        lambda: a.register_tensors("x", [(p, "p", n) for n, p in source.named_parameters()]),
        lambda: b.register_tensors(
            "x", [(target.get_parameter(name), "p", name) for name in reversed(names)]
        ),
    )
    sending = send.transfer("send")
    recv.transfer("recv", blocking=True)
    sending.result(20)
    for name in names:
        assert torch.equal(source.get_parameter(name), target.get_parameter(name))


FORKING = """
import gc, os, sys
import numpy as np
import tensorbus
from tensorbus.kvstore import connect

url, namespace = sys.argv[1:]
a, b = (tensorbus.TensorBusClient.embedded(url, rank, namespace) for rank in (0, 1))
a.init_pair("p", "a", "b", 1, blocking=False)
b.init_pair("p", "b", "a", 1)
from concurrent.futures import ThreadPoolExecutor
sent, got = np.arange(5.0), np.zeros(5)
with ThreadPoolExecutor(2) as pool:
    send = pool.submit(a.register_tensors, "x", [(sent, "p")])
    recv = b.register_tensors("x", [(got, "p")])
    send = send.result()
sending = send.transfer("send")
name = sending.name
child = os.fork()
if child == 0:
    for call in (lambda: send.transfer("send"), sending.done, lambda: a.command_queue.size()):
        try:
            call()
            os._exit(1)
        except RuntimeError as error:
            assert "fork" in str(error), error
    del a, b, send, recv, sending
    gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert os.path.exists("/dev/shm/sem." + name[1:])
recv.transfer("recv", blocking=True)
assert sending.result(20).readers == {1: "read"}
assert (got == sent).all()
print("done")
"""


def test_a_forked_child_harms_nothing_of_its_parent(threads: Bus, start_python: Start):
    worker = start_python(FORKING, threads.url, threads.namespace)
    assert worker.line() == "done"
    assert worker.wait() == 0, worker.errors
