"""tensorbus store and tensorbus kv, as people and scripts use them."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tensorbus.kvstore import connect

PROGRAM = str(Path(sys.executable).parent / "tensorbus")
OK, FAILED, USAGE, TIMEOUT, ABSENT, UNREACHABLE = range(6)


@pytest.fixture
def kv(start_program):
    """Runs `tensorbus kv ...` against a server of its own: (exit code, output, errors)."""
    server = start_program(PROGRAM, "store", "--port", "0")
    url = server.line().removeprefix("ready ")

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        done = subprocess.run(
            [PROGRAM, "kv", *arguments, "--store", url],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30,
        )
        return done.returncode, done.stdout, done.stderr

    run.url = url
    return run


def test_set_get_list_delete(kv):
    assert kv("set", "rank/0", "ready") == (OK, "", "")
    assert kv("get", "rank/0") == (OK, "ready", "")
    assert kv("set", "from stdin", "-", stdin="a\nb\n")[0] == OK
    assert kv("get", "from stdin")[1] == "a\nb\n"
    assert kv("list") == (OK, "from stdin\nrank/0\n", "")
    assert kv("list", "rank/")[1] == "rank/0\n"
    assert kv("delete", "rank/0")[0] == OK
    code, output, errors = kv("get", "rank/0")
    assert (code, output) == (ABSENT, "")
    assert "rank/0" in errors
    assert kv("delete", "rank/0")[0] == ABSENT


def test_keys_are_the_ones_that_python_sees(kv):
    with connect(kv.url, namespace="job", component="part") as store:
        store.set("from python", "1")
        assert kv("get", "from python", "--namespace", "job", "--component", "part")[1] == "1"
        kv("set", "from shell", "2", "--namespace", "job", "--component", "part")
        assert store.get("from shell") == b"2"


def test_wait_says_what_is_missing_and_exits_with_3(kv):
    kv("set", "r/0", "ready")
    code, _, errors = kv("wait", "r/*", "--count", "2", "--value", "ready", "--timeout", "0.2")
    assert code == TIMEOUT
    assert "1 of 2 keys match" in errors
    kv("set", "r/1", "ready")
    assert kv("wait", "r/*", "--count", "2", "--value", "ready")[:2] == (OK, "r/0\nr/1\n")


def test_a_timeout_of_zero_looks_once(kv):
    code, _, errors = kv("wait", "once", "--timeout", "0")
    assert code == TIMEOUT
    assert "once" in errors
    assert kv("set", "once", "x", "--timeout", "0")[0] == OK
    assert kv("wait", "once", "--timeout", "0")[:2] == (OK, "once\n")
    assert kv("get", "once", "--timeout", "0")[:2] == (OK, "x")


def test_barrier_names_the_missing_rank(kv):
    code, _, errors = kv("barrier", "start", "2", "--member", "1", "--timeout", "0.2")
    assert code == TIMEOUT
    assert "missing: rank 0" in errors
    assert kv("barrier", "start", "1")[0] == OK


def test_watch_prints_changes(kv, start_program):
    kv("set", "w/a", "1")
    watch = start_program(
        PROGRAM, "kv", "watch", "w/", "--current", "--count", "3", "--store", kv.url
    )
    assert watch.line() == "put w/a 1"
    kv("set", "w/b", "2")
    assert watch.line() == "put w/b 2"
    kv("delete", "w/a")
    assert watch.line() == "delete w/a"
    assert watch.wait() == OK


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["get", "k", "--timeout", "-1"], USAGE, "timeout"),
        (["get", "k", "--namespace", "a/b"], USAGE, "a/b"),
        (["get"], USAGE, "key is required"),
        (["set", "k"], USAGE, "value is required"),
        (["get", "k", "--token-file", "/nonexistent"], USAGE, "/nonexistent"),
        (["barrier", "b", "0"], USAGE, "expected a whole number >= 1"),
        (["barrier", "b", "-1"], USAGE, "expected a whole number >= 1"),
        (["wait", "b*", "--count", "-1"], USAGE, "expected a whole number >= 0"),
        (["get", "x" * 9000], USAGE, "too long"),
    ],
)
def test_bad_input_is_named(kv, arguments, code, word):
    got, _, errors = kv(*arguments)
    assert got == code, errors
    assert word in errors


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PATH": "/usr/bin:/bin"} | (env or {}),
    )
    return done.returncode, done.stderr


def test_unreachable_is_5_and_a_missing_url_is_2():
    code, errors = run("kv", "get", "k", "--store", "tensorbus://127.0.0.1:1", "--timeout", "0.2")
    assert code == UNREACHABLE
    assert "127.0.0.1:1" in errors
    code, errors = run("kv", "get", "k")
    assert code == USAGE
    assert "TENSORBUS_STORE" in errors
    code, errors = run("kv", "get", "k", env={"TENSORBUS_STORE": "ftp://somewhere"})
    assert code == USAGE
    assert "ftp" in errors


def test_a_port_in_use_is_a_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, errors = run("store", "--port", str(taken.getsockname()[1]))
    assert code == FAILED
    assert "another server runs there" in errors


def test_token_file_and_wrong_token(start_program, tmp_path):
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("open sesame\n")
    wrong.write_text("open barley\n")
    for file in (secret, wrong):
        file.chmod(0o600)
    server = start_program(PROGRAM, "store", "--port", "0", "--token-file", str(secret))
    url = server.line().removeprefix("ready ")
    assert run("kv", "set", "k", "v", "--store", url, "--token-file", str(secret))[0] == OK
    code, errors = run("kv", "set", "k", "v", "--store", url, "--token-file", str(wrong))
    assert code == FAILED
    assert "refused our token" in errors
    code, errors = run("kv", "set", "k", "v", "--store", url)
    assert code == FAILED
    assert "TENSORBUS_TOKEN" in errors


@pytest.mark.parametrize(
    "command",
    [["store", "--port", "0"], ["kv", "get", "k", "--store", "tensorbus://127.0.0.1:1"]],
    ids=["store", "kv"],
)
def test_a_token_file_that_others_can_read_is_refused(command, tmp_path):
    file = tmp_path / "token"
    file.write_text("open sesame\n")
    for mode in (0o640, 0o604, 0o602):
        file.chmod(mode)
        code, errors = run(*command, "--token-file", str(file))
        assert code == USAGE
        assert f"mode {mode:04o}" in errors
        assert "chmod 600" in errors
        assert "sesame" not in errors
    os.mkfifo(tmp_path / "pipe", 0o600)
    for other, reason in ((tmp_path / "pipe", "regular"), (tmp_path, "regular")):
        code, errors = run(*command, "--token-file", str(other))
        assert code == USAGE
        assert reason in errors
    (tmp_path / "empty").touch(0o600)
    code, errors = run(*command, "--token-file", str(tmp_path / "empty"))
    assert code == USAGE
    assert "first line" in errors


@pytest.mark.parametrize(
    ("options", "whom"),
    [
        (["--host", "127.0.0.1"], "every user of this host"),
        (["--host", "0.0.0.0"], "everybody who can reach it"),
        (["--token-file", "TOKEN", "--allow-torch"], "torch clients"),
        (["--token-file", "TOKEN"], None),
    ],
)
def test_a_store_that_strangers_can_use_says_so(start_program, tmp_path, options, whom):
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("open sesame\n")
    given = [str(token) if option == "TOKEN" else option for option in options]
    server = start_program(PROGRAM, "store", "--port", "0", *given)
    server.line()
    server.signal(signal.SIGTERM)
    server.wait()
    assert ("no token" in server.errors) == (whom is not None)
    assert whom is None or whom in server.errors


def test_sigterm_stops_the_server_cleanly_and_the_journal_keeps_the_keys(start_program, tmp_path):
    journal = str(tmp_path / "journal")
    first = start_program(PROGRAM, "store", "--port", "0", "--journal", journal)
    url = first.line().removeprefix("ready ")
    assert run("kv", "set", "kept", "yes", "--store", url)[0] == OK
    first.signal(signal.SIGTERM)
    assert first.wait() == OK
    second = start_program(PROGRAM, "store", "--port", "0", "--journal", journal)
    url = second.line().removeprefix("ready ")
    assert run("kv", "wait", "kept", "--value", "yes", "--store", url)[0] == OK


@pytest.mark.parametrize("command", ["", "store", "kv", "kv wait", "kv barrier", "plan"])
def test_help_teaches(command):
    done = subprocess.run(
        [PROGRAM, *command.split(), "--help"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == OK
    assert "Usage:" in done.stdout
    assert len(done.stdout.splitlines()) > 8
