"""`tensorbus doctor`: what it says of this machine, of a peer, and of what is wrong."""

import json
import os
import resource
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorbus
from processes import PROGRAM


def doctor(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> tuple[int, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TENSORBUS_")}
    done = subprocess.run(
        [PROGRAM, "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean | (env or {}),
        check=False,
        **options,
    )
    return done.returncode, done.stdout if done.returncode < 2 else done.stderr


def findings(*arguments: str, **options: Any) -> dict[tuple[str, str], dict[str, str]]:
    _, output = doctor("--json", *arguments, **options)
    return {(row["section"], row["name"]): row for row in json.loads(output)}


def test_a_sound_machine_has_no_problems():
    code, text = doctor()
    assert code == 0, text
    assert "No problems." in text
    for word in ("machine", "limits", "same host", "network", "settings", "descriptors"):
        assert word in text


def test_json_has_the_same_findings():
    found = findings()
    assert {"machine", "limits", "same host", "network", "settings"} == {key[0] for key in found}
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found["limits", "descriptors"]["value"].startswith(str(soft))
    assert all(row["state"] in ("ok", "note", "problem") for row in found.values())
    assert not [row for row in found.values() if row["state"] == "problem" and not row["advice"]]


def test_ucx_is_named_and_listens_where_it_was_told():
    found = findings("--bind", "127.0.0.1")
    if found["network", "UCX"]["value"] == "none":
        pytest.skip("a build without UCX")
    assert "libucp" in found["network", "UCX"]["value"]
    asserts = found["network", "UCX"]["value"].startswith("1.13.")
    assert found["network", "UCX"]["state"] == ("note" if asserts else "fine")
    assert "tcp" in found["network", "transports it has"]["value"]
    listens = found["network", "listens"]
    assert listens["state"] == "ok"
    assert listens["value"].startswith("127.0.0.1:")


def test_an_address_that_no_device_has_is_a_problem():
    code, text = doctor("--bind", "192.0.2.1")
    if "UCX" in text and "none" in text:
        pytest.skip("a build without UCX")
    assert code == 1
    assert "no network device of this machine has the address" in text


def test_settings_are_shown_but_not_secrets():
    found = findings(env={"TENSORBUS_TOKEN": "hush", "TENSORBUS_LOG": "debug"})
    assert found["settings", "TENSORBUS_LOG"]["value"] == "debug"
    assert "hush" not in found["settings", "TENSORBUS_TOKEN"]["value"]
    assert "default" in findings()["settings", "TENSORBUS_LOG"]["value"]


def test_an_unknown_setting_is_a_problem():
    code, text = doctor(env={"TENSORBUS_BNID": "1"})
    assert code == 1
    assert "TENSORBUS_BNID" in text


def test_a_limit_that_refuses_tensors_is_named():
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))

    row = findings(preexec_fn=lower)["limits", "size of files"]
    assert row["state"] == "note"
    assert "ulimit -f" in row["advice"]


def test_a_peer_that_is_no_address_is_wrong_usage(tmp_path: Path):
    nonsense = tmp_path / "peer"
    nonsense.write_bytes(b"nothing of ours")
    code, text = doctor("--peer", str(nonsense))
    assert code == 2
    assert "this is not a descriptor" in text
    assert doctor("--peer", "not a file")[0] == 2


def sized(value: str | bytes) -> bytes:
    """A short one, as addresses hold it."""
    value = value.encode() if isinstance(value, str) else value
    return bytes([len(value)]) + value


def start_time() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def address(kind: str, where: bytes, host: str | None = None, started: int | None = None) -> str:
    """Of this process, in hexadecimal digits, unless said otherwise."""
    own_host = findings()["machine", "host key"]["value"]
    numbers = struct.pack("<qQ", os.getpid(), started or start_time())
    identity = sized(host or own_host) + numbers + bytes(16) + sized("me")
    return (b"tensorbus address\x02" + identity + sized(kind) + sized(where)).hex()


def test_a_peer_on_this_host_is_served_by_shared_memory(unique: str):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{unique}")
        listener.listen()
        found = findings("--peer", address("shm", unique.encode()))
        assert found["peer", "shm"]["value"] == "would serve it"
        assert "does not offer it" in found["peer", "ucx"]["value"]
        stale = findings("--peer", address("shm", unique.encode(), started=7))
        assert "the address is stale" in stale["peer", "shm"]["value"]
    gone = findings("--peer", address("shm", unique.encode()))
    assert "cannot connect" in gone["peer", "shm"]["value"]
    assert gone["peer", "reachable"]["state"] == "problem"


def test_a_peer_may_be_the_descriptor_of_an_endpoint():
    with tensorbus.Endpoint(name="source") as endpoint:
        descriptor = endpoint.expose([np.zeros(3)]).hex()
        found = findings("--peer", descriptor)
    assert "source (pid" in found["peer", "process"]["value"]
    assert found["peer", "shm"]["value"] == "would serve it"
    assert findings("--peer", descriptor)["peer", "reachable"]["state"] == "problem"


def test_a_peer_elsewhere_is_served_by_the_network_if_there_is_one():
    elsewhere = address("shm", b"x", host="another host")
    assert "on another host" in findings("--peer", elsewhere)["peer", "shm"]["value"]
    through_ucx = address("ucx", b"x", host="another host")
    unbound = findings("--peer", through_ucx)
    assert unbound["peer", "ucx"]["state"] == "note"
    assert unbound["peer", "reachable"]["state"] == "problem"
    if unbound["network", "UCX"]["value"] == "none":
        return
    assert "TENSORBUS_BIND" in unbound["peer", "ucx"]["value"]
    bound = findings("--peer", through_ucx, "--bind", "127.0.0.1")
    assert bound["peer", "ucx"]["value"] == "would serve it"


def test_a_peer_may_be_a_file(tmp_path: Path):
    file = tmp_path / "peer"
    file.write_bytes(bytes.fromhex(address("ucx", b"x", host="another host")))
    assert "me (pid" in findings("--peer", str(file))["peer", "process"]["value"]
