"""Workers whose tensors are on devices, of the stand-in driver: servers know nothing of it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from processes import Process, Start, free_port

SCHEDULER = """
from tensorbus import fserver
fserver.init()
fserver.stop()
"""

SERVER = """
import sys
import torch
from tensorbus import fserver
fserver.init()
for _ in range(int(sys.argv[1])):
    for batch in fserver.get_batch():
        fserver.respond([tensor * 2 for tensor in batch.tensors], batch.handler)
fserver.stop()
"""

WORKER = """
import json
import numpy as np
from device_array import DeviceArray, FrameworkArray
from tensorbus import fserver

fserver.init()
rng = np.random.default_rng(5)
said = []
wide = DeviceArray(np.zeros((300, 500), np.float32)[:, 100:400])
columns = FrameworkArray(np.zeros((40, 60), np.float32).T)
target = DeviceArray(np.zeros((300, 600), np.float32)[:, ::2], device=1)
other = DeviceArray(np.zeros((60, 40), np.float32))
host, host_target = np.zeros(700, np.float32), np.zeros(700, np.float32)
for step in range(3):
    values = rng.standard_normal((300, 300), np.float32)
    few = rng.standard_normal((60, 40), np.float32)
    wide.write(values)
    columns.write(few)
    host[:] = step + 1
    target.write(np.full((300, 300), 7, np.float32))
    handler = fserver.push_pull(
        [wide, columns, host], [1, 2, 3], [target, other, host_target], [1, 2, 3]
    )
    wide.write(np.zeros((300, 300), np.float32))  # it is the caller's again
    fserver.wait(handler if step != 1 else handler + 1, 60_000)
    fserver.wait(handler)
    said += [
        bool((target.read() == 2 * values).all()), bool((other.read() == 2 * few).all()),
        bool((host_target == 2 * host).all()),
    ]
try:
    fserver.prepare([wide], [1], [], [])
except fserver.BadArgument as error:
    said.append(str(error))
print(json.dumps(said))
fserver.stop()
"""


def job(start: Start, env: Mapping[str, str], steps: int) -> Process:
    """The worker."""
    common = {
        "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1", "DMLC_GROUP_SIZE": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_RANK": "0", "STEPMESH_GPU": "0", "TENSORBUS_INIT_TIMEOUT": "60",
    }  # fmt: skip
    start(SCHEDULER, env=common | {"DMLC_ROLE": "scheduler"})
    start(SERVER, steps, env=common | {"DMLC_ROLE": "server"})
    return start(WORKER, env=common | {"DMLC_ROLE": "worker"} | dict(env))


@pytest.mark.proves("V4.2")
def test_pushed_from_devices_and_answered_to_devices_bit_for_bit(
    start_python: Start, standin: Mapping[str, str]
):
    *rounds, refusal = json.loads(job(start_python, standin, 3).line(90))
    assert rounds == [True] * 9
    assert "push tensor 0 is on CUDA; only CPU tensors can be moved" in refusal


@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
@pytest.mark.parametrize("function", ["cuMemcpy2DAsync", "cuEventQuery", "cuStreamWaitEvent"])
def test_a_device_that_dies_is_an_error_of_the_call(
    start_python: Start, standin: Mapping[str, str], function: str
):
    worker = job(start_python, {**standin, "STANDIN_FAIL": f"{function}:3:700"}, 3)
    assert worker.wait(90) != 0
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in worker.errors or "gives 700" in worker.errors
