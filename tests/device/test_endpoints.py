"""Endpoints of processes whose tensors are on devices, of the stand-in driver."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from processes import Start

OWNER = """
import sys
import numpy as np, tensorbus
from device_array import DeviceArray

matrix = np.arange(700 * 1200, dtype=np.float32).reshape(700, 1200)
columns = DeviceArray(np.zeros((1200, 700), np.float32).T)
columns.write(matrix)
with tensorbus.Endpoint() as endpoint:
    print(endpoint.expose([columns, matrix, DeviceArray(matrix[:, 5:6])]).hex())
    sys.stdin.readline()
"""

READER = """
import json, sys
import numpy as np, tensorbus
from device_array import DeviceArray

descriptor = bytes.fromhex(sys.argv[1])
matrix = np.arange(700 * 1200, dtype=np.float32).reshape(700, 1200)
wide = DeviceArray(np.zeros((700, 2400))[:, ::2])
targets = [wide, DeviceArray(np.zeros_like(matrix)), np.zeros((700, 1), np.float32)]
for target in targets[:2]:
    target.write(np.full(target.shape, 7, target.dtype))
with tensorbus.Endpoint() as endpoint:
    try:
        endpoint.read(descriptor, into=targets, timeout=30)
    except Exception as error:
        print(json.dumps(type(error).__name__))
        sys.exit()
    whole = endpoint.read(descriptor)[0]
print(json.dumps([
    bool((wide.read() == matrix).all()),
    bool((targets[1].read() == matrix).all()),
    bool((targets[2] == matrix[:, 5:6]).all()),
    bool((np.asarray(whole) == matrix).all()),
]))
"""


def test_exposed_from_a_device_and_read_to_a_device_and_to_the_host(
    start_python: Start, standin: Mapping[str, str]
):
    owner = start_python(OWNER, env=dict(standin))
    reader = start_python(READER, owner.line(), env=dict(standin))
    assert json.loads(reader.line()) == [True] * 4


FUNCTIONS = (
    "cuMemcpy2DAsync", "cuEventRecord", "cuEventQuery", "cuStreamCreate", "cuStreamWaitEvent",
    "cuEventCreate", "cuLaunchHostFunc", "cuMemHostRegister", "cuStreamIsCapturing",
    "cuCtxPushCurrent", "cuDevicePrimaryCtxRetain", "cuThreadExchangeStreamCaptureMode",
)  # fmt: skip


@pytest.mark.proves("V4.2")
@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
@pytest.mark.parametrize("error", [1, 700])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_of_the_driver_that_fails_gives_the_bytes_or_an_error(
    start_python: Start, standin: Mapping[str, str], function: str, error: int
):
    """The user's own calls fail, too: then the script ends with an assertion."""
    owner = start_python(OWNER, env=dict(standin))
    fail = ",".join(f"{function}:{call}:{error}" for call in (2, 5))
    env = {**standin, "STANDIN_FAIL": fail}
    reader = start_python(READER, owner.line(), env=env)
    try:
        said = json.loads(reader.line())
    except AssertionError:
        assert "gives" in reader.errors
    else:
        errors = ("RuntimeError", "ValueError", "UnsupportedError", "CancelledError")
        assert said == [True] * 4 or said in errors
