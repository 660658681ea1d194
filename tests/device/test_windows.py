"""From device to device of two processes, through a window in device memory."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping

import pytest
from processes import Process, Start

OWNER = """
import sys
import numpy as np, tensorbus
from device_array import DeviceArray

matrix = np.arange(1500 * 1200, dtype=np.float32).reshape(1500, 1200)
half = DeviceArray(np.zeros((1500, 2400), np.float32)[:, 600:1800])
half.write(matrix)
with tensorbus.Endpoint() as endpoint:
    descriptor = endpoint.expose([half, DeviceArray(matrix[:, :4])])
    print(descriptor.hex())
    for line in sys.stdin:
        print(endpoint.release(descriptor))
"""

READER = """
import json, sys
import numpy as np, tensorbus
from device_array import DeviceArray

descriptor = bytes.fromhex(sys.argv[1])
matrix = np.arange(1500 * 1200, dtype=np.float32).reshape(1500, 1200)
kind = {"float32": np.float32, "float64": np.float64}[sys.argv[2]]
device = int(sys.argv[3])
wide = DeviceArray(np.zeros((1500, 1300), kind)[:, 50:1250], device)
few = DeviceArray(np.zeros((1500, 4), kind), device)

def look(read):
    try:
        read.wait(60)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return [read.path, bool((wide.read() == matrix).all() and (few.read() == matrix[:, :4]).all())]

with tensorbus.Endpoint() as endpoint:
    for _ in range(2):
        for target in (wide, few):
            target.write(np.full(target.shape, 7, kind))
        print(json.dumps(look(endpoint.start_read(descriptor, [wide, few]))))
    host = endpoint.start_read(descriptor)
    whole = host.wait(60)[0]
    print(json.dumps([host.path, bool((np.asarray(whole) == matrix).all())]))
    print(json.dumps(sorted(k for k, v in endpoint.stats()["paths"].items() if v["reads"])))
    sys.stdin.readline()
"""

BOX_READER = """
import json, sys
import numpy as np, tensorbus
from device_array import DeviceArray

descriptor = bytes.fromhex(sys.argv[1])
matrix = np.arange(1500 * 1200, dtype=np.float32).reshape(1500, 1200)
box = DeviceArray(np.zeros((700, 100), np.float32))
with tensorbus.Endpoint() as endpoint:
    read = endpoint.start_read(descriptor, [box], parts=[(0, (30, 1000))])
    read.wait(60)
    print(json.dumps([read.path, bool((box.read() == matrix[30:730, 1000:1100]).all())]))
"""


def said(process: Process) -> object:
    return json.loads(process.line(60))


def read_twice(
    start: Start, standin: Mapping[str, str], kind: str = "float32", device: int = 0
) -> tuple[list[object], Process, Process]:
    owner = start(OWNER, env=dict(standin))
    reader = start(READER, owner.line(), kind, device, env=dict(standin))
    return [said(reader) for _ in range(4)], owner, reader


@pytest.mark.proves("V1.4", "V3.3")
@pytest.mark.parametrize("device", [0, 1])
def test_what_keeps_its_type_goes_through_the_window(
    start_python: Start, standin: Mapping[str, str], device: int
):
    """The few columns of the second tensor are too short for a device: whoever asks is told so."""
    owner = start_python(OWNER, env=dict(standin))
    reader = start_python(BOX_READER, owner.line(), env=dict(standin))
    assert said(reader) == ["device window", True]
    found, *_ = read_twice(start_python, standin, device=device)
    assert found[0] == found[1]
    assert found[0] in (["device window", True], ["staged", True])
    assert found[2] == ["staged", True]


@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
def test_what_is_cast_passes_through_the_host(start_python: Start, standin: Mapping[str, str]):
    found, *_ = read_twice(start_python, standin, "float64")
    assert found[:3] == [["staged", True]] * 3


@pytest.mark.proves("V3.3")
@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
@pytest.mark.parametrize(
    "trouble",
    [
        {"STANDIN_PEERS": "0"},
        {"STANDIN_FAIL": "cuIpcOpenMemHandle:1:205"},
        {"STANDIN_FAIL": "cuIpcOpenMemHandle:1:400"},
        {"STANDIN_FAIL": "cuIpcGetMemHandle:1:801"},
        {"STANDIN_FAIL": "cuIpcGetMemHandle:1:1"},
    ],
    ids=lambda trouble: next(iter(trouble.values())),
)
def test_without_a_window_it_passes_through_the_host(
    start_python: Start, standin: Mapping[str, str], trouble: dict[str, str]
):
    env = {**standin, **trouble}
    owner = start_python(OWNER, env=env)
    reader = start_python(BOX_READER, owner.line(), env=env)
    path, right = said(reader)  # type: ignore[misc]
    assert right
    assert path == ("device window" if "STANDIN_PEERS" in trouble else "staged")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("standin", ["random"], indirect=True)
def test_an_owner_that_ends_in_the_middle_is_an_error(
    start_python: Start, standin: Mapping[str, str], number: signal.Signals
):
    env = {**standin, "STANDIN_DELAY_US": "200000"}
    owner = start_python(OWNER, env=env)
    reader = start_python(READER, owner.line(), "float32", 0, env=dict(standin))
    assert not reader.has_line(0.3)
    owner.signal(number)
    first = said(reader)
    assert first[0] in ("PeerLostError", "TimeoutError"), first  # type: ignore[index]


@pytest.mark.parametrize("standin", ["random"], indirect=True)
def test_a_reader_that_is_killed_in_the_middle_leaves_the_owner_whole(
    start_python: Start, standin: Mapping[str, str]
):
    owner = start_python(OWNER, env=dict(standin))
    descriptor = owner.line()
    slow = {**standin, "STANDIN_DELAY_US": "200000"}
    for _ in range(2):
        reader = start_python(BOX_READER, descriptor, env=slow)
        reader.has_line(1.5)
        reader.kill()
    reader = start_python(BOX_READER, descriptor, env=dict(standin))
    assert said(reader) == ["device window", True]
    owner.tell("release")
    assert owner.line() == "True"
