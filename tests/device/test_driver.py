"""The driver is loaded by who asks for a device, and by nobody else; doctor looks at it."""

import json
import subprocess
import sys

import pytest
from processes import PROGRAM
from stand_in import with_standin

CPU_WORK = """
import numpy as np
import tensorbus
from tensorbus.kvstore import StoreServer

with StoreServer("127.0.0.1", 0) as store, tensorbus.TensorBusClient.embedded(store.url, rank=0):
    with tensorbus.Endpoint(name="here") as endpoint:
        tensorbus.empty((4, 4), "float32")
assert "libcuda" not in open("/proc/self/maps").read()
"""


def doctor(*arguments: str, **variables: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Its exit code, and what it says of devices, by name."""
    done = subprocess.run(
        [PROGRAM, "doctor", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=with_standin(**variables),
        check=False,
    )
    rows = json.loads(done.stdout)
    return done.returncode, {row["name"]: row for row in rows if row["section"] == "devices"}


@pytest.mark.proves("V1.1")
def test_import_and_cpu_work_never_load_the_driver():
    """Though there is one: the stand-in would be found."""
    subprocess.run([sys.executable, "-c", CPU_WORK], check=True, timeout=60, env=with_standin())


@pytest.mark.proves("V1.1")
def test_doctor_looks_at_devices_only_when_asked():
    code, found = doctor(STANDIN_DEVICES="0")
    assert code == 0
    assert found["CUDA"]["value"] == "not looked at; --gpu does"


@pytest.mark.proves("V1.1", "V4.1")
def test_doctor_uses_each_device_and_says_that_it_is_none():
    code, found = doctor("--gpu", STANDIN_LAZY="1", STANDIN_DELAY_US="0", STANDIN_DEVICES="2")
    assert code == 0, found
    assert found["CUDA"]["value"] == "12.4"
    assert "stand-in" in found["cuda:1"]["value"]
    assert "says nothing about a GPU" in found["cuda:1"]["advice"]
    for device in ("cuda:0", "cuda:1"):
        for check in ("pinned memory", "bytes to and fro", "strides", "order after a stream"):
            assert found[f"{device} {check}"]["state"] == "ok"
    assert found["cuda:0 to cuda:1"]["value"] == "direct"


@pytest.mark.proves("V1.1")
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"STANDIN_DEVICES": "0"}, "CUDA_ERROR_NO_DEVICE"),
        ({"STANDIN_VERSION": "11080"}, "the driver serves CUDA 11.8"),
        ({"STANDIN_FAIL": "cuInit:1:999"}, "CUDA_ERROR_UNKNOWN"),
        ({"LD_LIBRARY_PATH": ""}, "libcuda.so.1 cannot be loaded"),
    ],
)
def test_doctor_says_why_no_device_can_be_used(variables, message):
    code, found = doctor("--gpu", **variables)
    if "LD_LIBRARY_PATH" in variables and "driver" in found:
        pytest.skip("this machine has a driver")
    assert code == 1
    assert message in found["CUDA"]["value"]


def test_a_device_that_fails_is_a_problem_with_its_cause():
    code, found = doctor("--gpu", STANDIN_FAIL="cuMemcpy2DAsync:1:700", STANDIN_DEVICES="1")
    assert code == 1
    failed = found["cuda:0 bytes to and fro"]
    assert failed["state"] == "problem"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in failed["value"]
