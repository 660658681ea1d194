"""What is not asked for is not there: no thread, no port, no file."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorbus
from jobs import get, until
from processes import PROGRAM, Start, free_port
from tensorbus import kvstore
from tensorbus.kvstore import StoreServer

# Its arguments: store, what embedded() is asked for, as JSON. What has come with it.
SCRIPT = """
import json, os, sys, time
from pathlib import Path

import numpy as np
import tensorbus

def listening():
    tables = [Path(f"/proc/self/net/{kind}").read_text() for kind in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    inodes = {f"socket:[{fields[9]}]" for fields in lines if fields[3] == "0A"}
    return [each for each in opened() if each in inodes]

def opened():
    folder = Path("/proc/self/fd")
    found = []
    for descriptor in os.listdir(folder):
        try:
            found.append(os.readlink(folder / descriptor))
        except FileNotFoundError:
            pass
    return found

# Some begin a little later than what they are for.
def settled():
    found = [os.listdir("/proc/self/task")]
    while len(found) < 6 or len({len(each) for each in found[-6:]}) > 1:
        time.sleep(0.1)
        found.append(os.listdir("/proc/self/task"))
    return found[-1]

def seen():
    files = [each for each in opened() if each.startswith("/") and not each.startswith("/memfd:")]
    return {
        "threads": os.listdir("/proc/self/task"), "ports": listening(), "files": files,
        "made": [str(each) for each in Path.cwd().rglob("*")], "shm": os.listdir("/dev/shm"),
    }

before = seen()
client = tensorbus.TensorBusClient.embedded(sys.argv[1], rank=0, **json.loads(sys.argv[2]))
threads = settled()
client.link("trainer").publish("policy", {"w": np.ones(1000, np.float32)})
after = seen() | {"threads": threads}  # a publish has threads that copy
print(json.dumps({kind: sorted(set(after[kind]) - set(before[kind])) for kind in after}))
client.close()
"""


@pytest.fixture
def more_of(start_program: Start, store_server: StoreServer, tmp_path: Path, unique: str) -> Any:
    """What a process has more of when it has embedded an agent and published."""

    def run(asked: dict[str, str], env: dict[str, str] | None = None) -> dict[str, list[str]]:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        (tmp_path / "script.py").write_text(SCRIPT)
        places = {"HOME": str(home), "TMPDIR": str(home), "XDG_RUNTIME_DIR": str(home)}
        process = start_program(
            "env", "-C", str(home), sys.executable, str(tmp_path / "script.py"),
            store_server.url, json.dumps({"namespace": unique} | asked),
            env=places | (env or {}),
        )  # fmt: skip
        found: dict[str, list[str]] = json.loads(process.line())
        assert process.wait() == 0, process.errors
        return found

    return run


@pytest.mark.proves("O5.1")
def test_no_thread_port_or_file_unless_asked_for(more_of: Any, tmp_path: Path):
    plain = more_of({})
    assert plain["ports"] == []
    assert plain["files"] == []
    assert plain["made"] == []
    assert plain["shm"] == []
    # Its agent's, and those that speak with the store.
    assert len(plain["threads"]) <= 4
    page = more_of({"metrics": "127.0.0.1:0"})
    assert len(page["ports"]) == 1
    assert len(page["threads"]) > len(plain["threads"])
    traced = more_of({}, {"TENSORBUS_TRACE": str(tmp_path / "trace")})
    assert len(traced["files"]) == 1
    assert len(traced["threads"]) > len(plain["threads"])


# Eight letters to an element: in an integer as it is printed, and in the memory as it is.
PATTERN = b"s3cr3t!!"
SECRET = np.full(64, np.frombuffer(PATTERN, np.int64)[0], np.int64)


def finds(shown: bytes) -> bool:
    """The number, or the bytes as they are, as text of them, in base 64 or in base 16."""
    many = 3 * PATTERN
    return any(
        each in shown
        for each in (
            str(SECRET[0]).encode(), PATTERN[:6], PATTERN.hex().encode(),
            PATTERN.hex().upper().encode(), base64.b64encode(many)[:24],
        )
    )  # fmt: skip


@pytest.mark.proves("O5.1")
def test_no_data_of_a_user_is_in_any_of_them(
    start_program: Start,
    store_server: StoreServer,
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("TENSORBUS_STATUS_PERIOD", "0.1")
    told = tensorbus.trace(tmp_path)
    assert told is not None
    port = free_port()
    got = {"w": np.zeros(64, np.int64)}
    place = ["--store", store_server.url, "--namespace", unique]
    page = start_program(str(PROGRAM), "dashboard", *place, "--bind", "127.0.0.1:0")
    page_url = page.line().split()[1]
    with (
        tensorbus.TensorBusClient.embedded(
            store_server.url, rank=0, namespace=unique, metrics=f"127.0.0.1:{port}"
        ) as trainer,
        tensorbus.TensorBusClient.embedded(store_server.url, rank=1, namespace=unique) as engine,
        kvstore.connect(store_server.url, namespace=unique) as store,
    ):
        publisher, puller = trainer.link("trainer"), engine.link("engine", "trainer")
        publisher.publish("policy", {"w": SECRET})
        assert puller.pull("policy", got) == 1

        def state() -> bytes:
            found = get(page_url + "state.json")
            rows = json.loads(found).get("rows", [])
            moved = {row["rank"] for row in rows if row["version"] == 1}
            return found.encode() if moved == {0, 1} else b""

        shown = {
            "the page's state": until(state, "the page to show both ranks"),
            "the page": get(page_url).encode(),
            "the metrics": get(f"http://127.0.0.1:{port}/metrics").encode(),
            "the stats": repr(tensorbus.stats()).encode(),
        }
        for rank in (0, 1):
            record = store.get(f"agents/{rank}", component="status")
            assert record is not None
            shown[f"the record of rank {rank}"] = record
    tensorbus.trace(None)
    shown["the trace"] = Path(told).read_bytes()
    assert finds(got["w"].tobytes())
    assert b"publish" in shown["the trace"]
    assert b"policy" in shown["the record of rank 0"]
    assert b'operation="publish"' in shown["the metrics"]
    assert [what for what, text in shown.items() if finds(text)] == []
