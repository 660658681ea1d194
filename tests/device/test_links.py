"""Links between processes whose tensors are on devices, of the stand-in driver."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from processes import PROGRAM, Process, Start
from tensorbus.kvstore import StoreServer

RANK = Path(__file__).resolve().parent / "link_rank.py"


@pytest.fixture
def ranks(
    store_server: StoreServer, unique: str, start_program: Start, standin: Mapping[str, str]
) -> list[Process]:
    """Two trainers and an engine."""
    processes = [
        start_program(
            sys.executable, "-u", str(RANK), store_server.url, f"device-{unique}", str(rank),
            env=dict(standin),
        )
        for rank in range(3)
    ]  # fmt: skip
    for process in processes:
        assert process.line() == "ready"
    return processes


def tell(ranks: list[Process], command: str, version: int) -> list[str]:
    for process in ranks:
        process.tell(f"{command} {version}")
    return [process.line() for process in ranks]


@pytest.mark.proves("V2.2", "V3.2", "V4.2")
def test_published_from_devices_and_pulled_to_a_device_bit_for_bit(ranks: list[Process]):
    *trainers, engine = ranks
    for version in (1, 2, 5):
        assert tell(trainers, "publish", version) == ["done", "done"]
        assert tell([engine], "pull", version) == ["right"]


def test_sent_from_devices_and_received_on_a_device_bit_for_bit(ranks: list[Process]):
    *trainers, engine = ranks
    for version in (1, 2, 3):
        engine.tell(f"recv {version}")
        assert tell(trainers, "send", version) == ["done", "done"]
        assert engine.line() == "right"


@pytest.mark.proves("V2.1", "V4.1")
@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
def test_tensors_of_another_stream_than_the_one_that_is_named_are_not_waited_for(
    ranks: list[Process],
):
    """That the others are right because their streams are waited for."""
    *trainers, engine = ranks
    assert tell(trainers, "publish_early", 1) == ["done", "done"]
    (said,) = tell([engine], "pull_early", 1)
    assert "elements of the box are wrong" in said


CPU_WORK = """
import sys, numpy as np, tensorbus
url, namespace = sys.argv[1:]
client = tensorbus.TensorBusClient.embedded(url, 0, namespace)
link = client.link("trainer", expected_world_size=1)
link.publish("policy", {"w": np.ones(1000)})
with tensorbus.Endpoint() as endpoint:
    endpoint.read(endpoint.expose([np.ones(1000)]))
print("libcuda" in open("/proc/self/maps").read())
"""


@pytest.mark.proves("V1.1")
@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
def test_work_with_tensors_of_the_host_loads_no_driver(
    store_server: StoreServer, unique: str, start_python: Start, standin: Mapping[str, str]
):
    worker = start_python(CPU_WORK, store_server.url, f"host-{unique}", env=dict(standin))
    assert worker.line() == "False"


WITH_A_DAEMON = """
import sys
import numpy as np, tensorbus
from device_array import DeviceArray

url, namespace, queue, state = sys.argv[1:]
matrix = np.arange(50_000, dtype=np.float32).reshape(50, 1000)
client = tensorbus.TensorBusClient(0, queue, state, namespace=namespace)
client.link("trainer", expected_world_size=1).publish("policy", {"w": DeviceArray(matrix)})
host = np.zeros_like(matrix)
embedded = tensorbus.TensorBusClient.embedded(url, 1, namespace)
embedded.link("engine", "trainer", 1).pull("policy", {"w": host})
print((host == matrix).all())
try:
    client.link("other", "trainer", 1).pull("policy", {"w": DeviceArray(host)}, timeout=20)
except Exception as error:
    print(error)
embedded.close()
client.close()
"""


@pytest.mark.proves("V1.6")
@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
def test_a_daemon_keeps_what_a_device_has_published_and_does_not_write_to_devices(
    store_server: StoreServer,
    unique: str,
    start_program: Start,
    start_python: Start,
    standin: Mapping[str, str],
    tmp_path: Path,
):
    files = [str(tmp_path / name) for name in ("queue", "state")]
    agent = start_program(
        str(PROGRAM), "agent", "--store", store_server.url, "--rank", "0", "--world-size", "8",
        "--namespace", f"device-{unique}", "--command-queue", files[0], "--state", files[1],
    )  # fmt: skip
    assert agent.line().startswith("ready")
    worker = start_python(
        WITH_A_DAEMON, store_server.url, f"device-{unique}", *files, env=dict(standin)
    )
    assert worker.line() == "True"
    assert "TensorBusClient.embedded()" in worker.line()


@pytest.mark.proves("V4.2")
@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
@pytest.mark.parametrize("error", [2, 700])
@pytest.mark.parametrize("function", ["cuMemcpy2DAsync", "cuEventQuery", "cuStreamWaitEvent"])
def test_a_trainer_whose_driver_fails_is_told_and_the_others_go_on(
    store_server: StoreServer,
    unique: str,
    start_program: Start,
    standin: Mapping[str, str],
    function: str,
    error: int,
):
    """Each process of the job has its own driver. What the user's own calls get is not ours."""
    failing = {**standin, "STANDIN_FAIL": ",".join(f"{function}:{n}:{error}" for n in (3, 4))}
    processes = [
        start_program(
            sys.executable, "-u", str(RANK), store_server.url, f"failing-{unique}", str(rank),
            env=failing if rank == 0 else dict(standin),
        )
        for rank in range(3)
    ]  # fmt: skip
    for process in processes:
        assert process.line(60) == "ready"
    *trainers, engine = processes
    said = tell(trainers, "publish", 1)
    assert said[1] == "done"
    if said[0] == "done":
        assert tell([engine], "pull", 1) == ["right"]
        return
    assert "CUDA_ERROR" in said[0] or "gives" in said[0], said
    if error != 700:  # the same worker goes on
        assert tell(trainers, "publish", 2) == ["done", "done"]
        assert tell([engine], "pull", 2) == ["right"]
