"""The interpreter's lock against those of the core: no order of the two can end in a deadlock, and
threads that are in our calls when the interpreter ends do no harm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "bindings"


@pytest.fixture(scope="module")
def lock_watch(tmp_path_factory):
    library = tmp_path_factory.mktemp("lock_watch") / "liblock_watch.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library]
    subprocess.run([*command, HERE / "lock_watch.c", "-ldl"], check=True, timeout=60)
    return library


@pytest.mark.timeout(150)
@pytest.mark.parametrize("what", ["blocks", "silent"])
def test_every_binding_while_each_blocking_call_blocks(what, lock_watch, tmp_path):
    done = subprocess.run(
        [sys.executable, HERE / "call_all.py", what, tmp_path],
        capture_output=True,
        text=True,
        timeout=140,
        env=os.environ | {"LD_PRELOAD": str(lock_watch), "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.strip() == "", done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


# What a thread does again and again; the names are those of PREPARED.
LOOPS = {
    "an agent's steps": "agent.step()",
    "calls of a store": "store.set('key', b'value'); store.get('key')",
    "waits that end at their timeout": "wait(store)",
    "transfers": "client.query_transfer_signal('none', timeout=0)",
    "reads": "reader.read(descriptor)",
    "memory of the pool": "tensorbus.empty((4,), 'float32'); tensorbus._core.trim_pool()",
}
PREPARED = """
import contextlib, logging, sys, threading, numpy
import tensorbus
from tensorbus import kvstore
from tensorbus.agent import TensorBusAgent

logging.disable()
server = kvstore.StoreServer("127.0.0.1", 0)
store = kvstore.connect(server.url)
agent = TensorBusAgent(1, 2, "127.0.0.1", server.port, sys.argv[1] + "/q", sys.argv[1] + "/s")
client = tensorbus.TensorBusClient.embedded(server.url, 5)
source, reader = tensorbus.Endpoint(), tensorbus.Endpoint()
exposed = numpy.ones(4)
descriptor = source.expose([exposed])
turns = threading.Semaphore(0)

def wait(store):
    with contextlib.suppress(TimeoutError):
        store.wait_for_key("none", timeout=0.001)

def loop():
    while True:
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            LOOP
        turns.release()

for _ in range(2):
    threading.Thread(target=loop, daemon=True).start()
for _ in range(20):
    turns.acquire()
"""


@pytest.mark.proves("B6.3")
@pytest.mark.parametrize("what", LOOPS)
def test_a_daemon_thread_in_a_call_does_not_abort_the_interpreter_at_its_end(what, tmp_path):
    script = PREPARED.replace("LOOP", LOOPS[what])
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
