"""The tests of the transport again, between two Ray nodes in network namespaces of their own."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import eventually
from ray_cluster import SETTINGS, elsewhere
from two_hosts import ADDRESSES, TwoHosts

HERE = Path(__file__).parent
RAY = str(Path(sys.executable).parent / "ray")
PORT = 6399

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(elsewhere(), reason="this is the inner run"),
]


def start_node(command: list[str], log: Path, raylets: list[subprocess.Popen[bytes]]) -> None:
    """Ray gives its own parts 30 s to start, not always enough on a busy machine: then again."""
    for _ in range(3):
        with log.open("w") as file:
            raylet = subprocess.Popen(
                command,
                env=os.environ | SETTINGS,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        raylets.append(raylet)
        eventually(
            lambda r=raylet: r.poll() is not None or "Ray runtime started" in log.read_text(),
            "a node of Ray",
            timeout=90,
            pause=0.1,
        )
        if raylet.poll() is None:
            return
        assert "timed out during startup" in log.read_text(), log.read_text()
        with contextlib.suppress(ProcessLookupError):  # what it may have left
            os.killpg(raylet.pid, signal.SIGKILL)
    pytest.fail(log.read_text())


@pytest.fixture(scope="module")
def hosts(scratch: Path) -> Iterator[TwoHosts]:  # noqa: ARG001
    hosts = TwoHosts()
    folder = tempfile.mkdtemp(prefix="tbray", dir="/tmp")
    raylets: list[subprocess.Popen[bytes]] = []
    common = ["--block", "--num-cpus=4", "--object-store-memory=200000000", "--disable-usage-stats"]
    nodes = (
        ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}",
         '--resources={"here": 100}'],
        [f"--address={ADDRESSES[0]}:{PORT}", '--resources={"there": 100}'],
    )  # fmt: skip
    try:
        for host, options in enumerate(nodes):
            command = [RAY, "start", *options, f"--node-ip-address={ADDRESSES[host]}", *common]
            log = Path(folder, f"node{host}.log")
            start_node([*hosts.on(host), *command], log, raylets)
        yield hosts
    finally:
        for raylet in reversed(raylets):
            raylet.terminate()
        for raylet in raylets:
            try:
                raylet.wait(20)
            except subprocess.TimeoutExpired:
                raylet.kill()
                raylet.wait()
            with contextlib.suppress(ProcessLookupError):  # what it may have left
                os.killpg(raylet.pid, signal.SIGKILL)
        hosts.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.proves("R10")
@pytest.mark.parametrize(
    "tests",
    [
        ["test_transport.py"],
        ["test_ray_faults.py", "-k", "dead_source or during_the_read or aborted"],
        pytest.param(["test_ray_faults.py", "--long"], marks=pytest.mark.long),
        pytest.param(["test_transport.py", "--long", "-k", "gibi"], marks=pytest.mark.long),
    ],
    ids=["transport", "faults", "all faults", "large"],
)
def test_the_same_over_the_network(hosts: TwoHosts, tmp_path: Path, tests: list[str]):
    address = f"{ADDRESSES[0]}:{PORT}"
    waiting = (
        "import ray, time\n"
        f"ray.init(address={address!r}, log_to_driver=False)\n"
        "while len([n for n in ray.nodes() if n['Alive']]) < 2: time.sleep(0.2)\n"
    )
    environment = os.environ | SETTINGS | {"RAY_ADDRESS": address}
    wait = [*hosts.on(0), "timeout", "90", sys.executable, "-c", waiting]
    subprocess.run(wait, env=environment, check=True, capture_output=True)
    pytest_options = ["-q", "-x", f"--basetemp={tmp_path / 'inner'}"]
    inner = [sys.executable, "-m", "pytest", *pytest_options, str(HERE / tests[0]), *tests[1:]]
    done = subprocess.run(
        [*hosts.on(0), *inner],
        env=environment,
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
