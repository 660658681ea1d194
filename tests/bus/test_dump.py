"""What agents keep in their files and in the store, for people."""

from __future__ import annotations

import os
import pty
import subprocess

from buses import Bus
from processes import PROGRAM, eventually


def program(*arguments: str) -> tuple[int, bytes, str]:
    run = subprocess.run([PROGRAM, *arguments], capture_output=True, check=False, timeout=60)
    return run.returncode, run.stdout, run.stderr.decode()


def dump(path: str) -> str:
    code, text, errors = program("agent", "--dump", path)
    assert (code, errors) == (0, "")
    return text.decode()


def on_terminal(*arguments: str) -> str:
    """What a person would see."""
    here, there = pty.openpty()
    try:
        subprocess.run([PROGRAM, *arguments], stdout=there, check=True, timeout=60)
        return os.read(here, 65536).decode().replace("\r\n", "\n")
    finally:
        os.close(there)
        os.close(here)


def test_the_files_of_a_running_agent_are_printed(daemons: Bus):
    client = daemons.client(0)
    client.init_pair("p", "a", "b", 1, blocking=False)  # there is no other side
    queue = dump(daemons.queue_path(0))
    assert queue.startswith('kind: "command queue"\n')
    assert f"  last_accepted: 1\n  pid: {os.getpid()}\n" in queue
    assert '  kind: init_pair\n    pair: "p"\n    local: "a"\n' in queue
    eventually(lambda: "init_pair" in dump(daemons.state_path(0)), "the pair in the state")
    state = dump(daemons.state_path(0))
    assert state.startswith('kind: "state"\n')
    assert "\nheartbeat:\n  wall_clock_ns: " in state
    assert f'  space: "{daemons.namespace}"\n' in state


def test_what_is_no_file_of_an_agent_is_not_printed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"something else" * 1000)
    code, text, errors = program("agent", "--dump", str(other))
    assert (code, text) == (1, b"")
    assert f"{other} is no LMDB file" in errors
    code, _, errors = program("agent")
    usage = 2
    assert code == usage
    assert "--rank is required" in errors


def test_records_of_agents_are_printed_for_people_and_given_as_bytes_to_pipes(daemons: Bus):
    daemons.client(3)
    get = ["kv", "get", "agent/3", "--store", daemons.url, "--component", "bus"]
    get += ["--namespace", daemons.namespace]
    eventually(lambda: program(*get)[0] == 0, "the agent's record")
    code, readable, errors = program(*get, "--readable")
    assert (code, errors) == (0, "")
    assert readable.startswith(b"incarnation: ")
    assert f"    pid: {daemons.agents[3].pid}\n".encode() in readable
    assert on_terminal(*get).encode() == readable
    code, raw, _ = program(*get)
    assert code == 0
    assert raw.startswith(b"tensorbus agent record")


def test_other_values_are_printed_as_they_are(store_server, unique):
    place = ["--store", store_server.url, "--namespace", unique, "--component", "bus"]
    assert program("kv", "set", "mine", "a value", *place)[0] == 0
    assert program("kv", "get", "mine", "--readable", *place)[1] == b"a value"
    # Not what an agent would write there.
    assert program("kv", "set", "agent/3", "nonsense", *place)[0] == 0
    code, text, errors = program("kv", "get", "agent/3", "--readable", *place)
    usage = 2
    assert (code, text) == (usage, b"")
    assert "this is not an agent record" in errors
    assert on_terminal("kv", "get", "agent/3", *place) == "nonsense\n"
