"""NVIDIA's own Python bindings on the stand-in, unchanged: independent users of its interface."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec

import pytest
from processes import Start

HAS_BINDINGS = find_spec("cuda") is not None and find_spec("cuda.bindings") is not None
pytestmark = pytest.mark.skipif(not HAS_BINDINGS, reason="pip install cuda-bindings cuda-core")

BINDINGS = """
import json
import numpy as np
from cuda.bindings import driver as d

def ok(result):
    assert result[0] == d.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]

ok(d.cuInit(0))
said = {"devices": ok(d.cuDeviceGetCount()), "version": ok(d.cuDriverGetVersion()) >= 12000}
ok(d.cuCtxPushCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
memory, stream, event = ok(d.cuMemAlloc(1 << 16)), ok(d.cuStreamCreate(1)), ok(d.cuEventCreate(2))
sent, found = np.arange(1 << 14, dtype=np.float32), np.zeros(1 << 14, np.float32)
ok(d.cuMemcpyHtoDAsync(memory, sent.ctypes.data, sent.nbytes, stream))
ok(d.cuEventRecord(event, stream))
ok(d.cuEventSynchronize(event))
ok(d.cuMemcpyDtoHAsync(found.ctypes.data, memory, found.nbytes, stream))
ok(d.cuStreamSynchronize(stream))
said["there and back"] = bool((sent == found).all())
half = np.zeros((128, 32), np.float32)
copy = d.CUDA_MEMCPY2D()
copy.srcMemoryType = copy.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_UNIFIED
copy.srcDevice, copy.srcPitch = int(memory), 512
copy.dstDevice, copy.dstPitch = half.ctypes.data, 128
copy.WidthInBytes, copy.Height = 128, 128
ok(d.cuMemcpy2DAsync(copy, stream))
ok(d.cuStreamSynchronize(stream))
said["in two dimensions"] = bool((half == sent.reshape(128, 128)[:, :32]).all())
said["a handle"] = type(ok(d.cuIpcGetMemHandle(memory))).__name__
print(json.dumps(said))
"""


@pytest.mark.proves("V1.2")
def test_the_bindings_move_bytes_on_the_stand_in(start_python: Start, standin: Mapping[str, str]):
    said = json.loads(start_python(BINDINGS, env=dict(standin)).line(60))
    assert said == {
        "devices": 2, "version": True, "there and back": True, "in two dimensions": True,
        "a handle": "CUipcMemHandle",
    }  # fmt: skip


CORE = """
import json
import numpy as np
import tensorbus
from cuda.core import Device

device = Device(0)
device.set_current()
stream = device.create_stream()
buffer = device.allocate(4096, stream=stream)
with tensorbus.Endpoint() as endpoint:
    # Its own DLPack, and its own stream.
    descriptor = endpoint.expose([buffer], stream=stream)
    (found,) = endpoint.read(descriptor)
    print(json.dumps([buffer.__dlpack_device__()[0], np.asarray(found).nbytes]))
"""


def test_what_cuda_core_allocates_is_taken_with_its_stream(
    start_python: Start, standin: Mapping[str, str]
):
    assert json.loads(start_python(CORE, env=dict(standin)).line(60)) == [2, 4096]


VIEW = """
import json
import numpy as np
from cuda.bindings import driver as d
from cuda.core import Device
from cuda.core.utils import StridedMemoryView
from device_array import DeviceArray

def ok(result):
    assert result[0] == d.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else None

Device(0).set_current()
matrix = np.arange(48 * 64, dtype=np.float32).reshape(48, 64)
array = DeviceArray(matrix.T)
stream = ok(d.cuStreamCreate(1))
view = StridedMemoryView.from_dlpack(array, stream_ptr=int(stream))
found = np.zeros(48 * 64, np.float32)
ok(d.cuMemcpyDtoHAsync(found.ctypes.data, view.ptr, found.nbytes, stream))
ok(d.cuStreamSynchronize(stream))
print(json.dumps([view.shape, view.strides, bool((found == matrix.ravel()).all())]))
"""


@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
def test_the_arrays_of_these_tests_are_what_cuda_core_takes_them_for(
    start_python: Start, standin: Mapping[str, str]
):
    said = json.loads(start_python(VIEW, env=dict(standin)).line(60))
    assert said == [[64, 48], [1, 64], True]
