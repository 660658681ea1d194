"""What NVIDIA itself says of the interface: its header, and its own bindings on the stand-in."""

import subprocess
from pathlib import Path

import pytest
from stand_in import ROOT, make_environment, with_standin

BINDINGS = "cuda-bindings==13.5.0"
CORE = "cuda-core==1.2.2"
HEADER = "nvidia-cuda-runtime-cu12==12.9.79"

ROUND_TRIP = """
import numpy as np
from cuda.bindings import driver as d

def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]

ok(d.cuInit(0))
assert b"stand-in" in ok(d.cuDeviceGetName(64, 0))
context = ok(d.cuDevicePrimaryCtxRetain(0))
ok(d.cuCtxPushCurrent(context))
memory, stream, event = ok(d.cuMemAlloc(1 << 16)), ok(d.cuStreamCreate(1)), ok(d.cuEventCreate(2))
sent = np.arange(1 << 14, dtype=np.float32)
back = np.zeros_like(sent)
ok(d.cuMemcpyHtoDAsync(memory, sent.ctypes.data, sent.nbytes, stream))
ok(d.cuEventRecord(event, stream))
ok(d.cuEventSynchronize(event))
ok(d.cuMemcpyDtoHAsync(back.ctypes.data, memory, back.nbytes, stream))
ok(d.cuStreamSynchronize(stream))
assert (sent == back).all()
assert type(ok(d.cuIpcGetMemHandle(memory))).__name__ == "CUipcMemHandle"
copy = d.CUDA_MEMCPY2D()
copy.srcMemoryType = copy.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_UNIFIED
columns = np.zeros((128, 32), dtype=np.float32)
copy.srcDevice, copy.srcPitch = int(memory), 512
copy.dstDevice, copy.dstPitch = columns.ctypes.data, 128
copy.WidthInBytes, copy.Height = 128, 128
ok(d.cuMemcpy2DAsync(copy, stream))
ok(d.cuStreamSynchronize(stream))
assert (columns == sent.reshape(128, 128)[:, :32]).all()
print("the bytes are right")
"""

BUFFER = """
try:
    from cuda.core import Device
except ImportError:
    from cuda.core.experimental import Device

device = Device(0)
device.set_current()
stream = device.create_stream()
buffer = device.allocate(4096, stream=stream)
assert buffer.size == 4096
assert tuple(buffer.__dlpack_device__()) == (2, 0)
assert "dltensor" in str(buffer.__dlpack__(stream=int(stream.handle)))
print("a tensor of cuda:0")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvidia")
    return make_environment(folder, BINDINGS, CORE, HEADER, "numpy==2.3.5")


def run(python: Path, script: str, **variables: str) -> str:
    done = subprocess.run(
        [python, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env=with_standin(**variables),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.proves("V1.2")
def test_the_declarations_are_those_of_nvidias_header(environment):
    headers = list(environment.parents[1].glob("lib/python*/site-packages/nvidia/**/cuda.h"))
    assert headers
    for header in headers:
        command = ["c++", "-std=c++20", "-fsyntax-only", f"-I{header.parent}", f"-I{ROOT / 'src'}"]
        subprocess.run([*command, str(ROOT / "tests/device/abi_check.cc")], check=True)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.proves("V4.1")
@pytest.mark.parametrize("lazy", ["0", "1"])
def test_nvidias_bindings_run_on_the_stand_in(environment, lazy):
    assert "the bytes are right" in run(environment, ROUND_TRIP, STANDIN_LAZY=lazy)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.proves("V4.1")
def test_nvidias_core_makes_device_tensors_on_the_stand_in(environment):
    assert "a tensor of cuda:0" in run(environment, BUFFER)
