"""The server is killed, stopped, replaced, told to stop: what its clients notice."""

import json
import os
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest
from processes import Start, StartServer, eventually
from raw_client import OP_ADD, OP_GET, OP_GRANT, OP_REFRESH, frame, raw_client, reply, text
from tensorbus.kvstore import StoreServer, connect

CHANGER = """
import json, sys
from tensorbus.kvstore import connect
url, me, leased = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "leased"
store = connect(url, timeout=60)
# With a lease the client has something to publish again when it meets a new instance.
if leased:
    store.set(f"alive/{me}", "x", lease=store.lease(30))
added, sets, tokens, losses = 0, 0, [], 0
print("ready")
while not store.exists("stop"):
    store.add("sum", me + 1)
    added += me + 1
    sets += 1
    store.set(f"last/{me}", str(sets))
    # Takes the token when it is free, and gives it back with a new number.
    held = store.get("token")
    mine, now = store.compare_and_set("token", held, f"{me}:{sets}")
    if mine:
        tokens.append([held.decode() if held is not None else None, now.decode()])
    else:
        losses += 1
print(json.dumps([added, sets, tokens, losses]))
store.close()
"""


def kill_in_the_middle(
    start_server: StartServer,
    start_python: Start,
    journal: Path,
    *,
    clients: int,
    kills: int,
    leased: bool,
) -> None:
    server = start_server(journal=journal)
    children = [
        start_python(CHANGER, server.url, me, "leased" if leased else "plain")
        for me in range(clients)
    ]
    for child in children:
        assert child.line(60) == "ready"
    watcher = connect(server.url, timeout=60)
    for kill in range(kills):
        # Progress after each restart, so that every kill meets clients in the middle of changes.
        target = watcher.add("sum", 0) + 40 * clients
        eventually(lambda wanted=target: watcher.add("sum", 0) >= wanted, "progress", 30)
        server.kill()
        if kill % 2:
            time.sleep(0.05)  # so that some try to connect in vain
        server.start_again()
    watcher.set("stop", "")
    outcomes = [json.loads(child.line(60)) for child in children]
    assert all(child.wait(30) == 0 for child in children)

    assert watcher.add("sum", 0) == sum(added for added, _, _, _ in outcomes)
    for me, (_, sets, _, _) in enumerate(outcomes):
        assert watcher.get(f"last/{me}") == str(sets).encode()
    # Each swap is told to exactly one client, and they form one chain from nothing to the last.
    swaps = [tuple(swap) for _, _, tokens, _ in outcomes for swap in tokens]
    followers = dict(swaps)
    assert len(followers) == len(swaps), "two clients were told that they swapped the same value"
    at, seen = None, 0
    while at in followers:
        at, seen = followers[at], seen + 1
    assert seen == len(swaps), "a swap is missing from the chain"
    last = watcher.get("token")
    assert last is not None
    assert at == last.decode()
    watcher.close()


@pytest.mark.proves("K1", "K9")
@pytest.mark.parametrize("leased", [False, True], ids=["plain", "leased"])
def test_a_killed_server_loses_nothing_and_applies_nothing_twice(
    start_server: StartServer, start_python: Start, tmp_path: Path, leased: bool
) -> None:
    kill_in_the_middle(
        start_server, start_python, tmp_path / "journal", clients=8, kills=3, leased=leased
    )


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.proves("K1", "K9")
def test_a_server_killed_many_times_loses_nothing(
    start_server: StartServer, start_python: Start, tmp_path: Path
) -> None:
    kill_in_the_middle(
        start_server, start_python, tmp_path / "journal", clients=8, kills=60, leased=True
    )


@pytest.mark.proves("K1", "K9")
def test_a_request_sent_again_is_answered_as_before(
    start_server: StartServer, tmp_path: Path
) -> None:
    """Over two connections of one session, and again after a restart from the journal."""
    server = start_server(journal=tmp_path / "journal")
    session = random.randbytes(16)
    add = frame(7, OP_ADD, struct.pack("<Q", 7) + text(b"/n") + struct.pack("<q", 5))
    with raw_client(server.port, session) as first:
        first.sendall(add)
        answer = reply(first)
        assert answer == (7, 0, struct.pack("<q", 5))
    with raw_client(server.port, session) as second:
        second.sendall(add)
        assert reply(second) == answer
    server.kill()
    server.start_again()
    with raw_client(server.port, session) as third, raw_client(server.port) as stranger:
        third.sendall(add)
        assert reply(third) == answer
        # Another session's request 7 is another request.
        stranger.sendall(add)
        assert reply(stranger) == (7, 0, struct.pack("<q", 10))


@pytest.mark.proves("K9")
def test_an_overwritten_lease_key_is_not_published_over_newer_values(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(journal=tmp_path / "journal")
    with connect(server.url) as holder, connect(server.url) as other:
        lease = holder.lease(30)
        holder.multi_set({"a": "old", "b": "old", "c": "old"}, lease=lease)
        other.set("a", "newer")
        other.delete("b")
        server.kill()
        server.start_again()
        assert holder.multi_get(["a", "b", "c"]) == [b"newer", None, b"old"]
        assert other.multi_get(["a", "b", "c"]) == [b"newer", None, b"old"]
        lease.revoke()
        assert other.list_keys() == ["a"]


@pytest.mark.proves("K9")
def test_without_a_journal_clients_bring_a_new_server_up_to_date(
    start_server: StartServer,
) -> None:
    server = start_server()
    with connect(server.url) as holder, connect(server.url) as other:
        lease = holder.lease(2)
        holder.multi_set({"leased/a": "1", "leased/b": "2", "leased/c": "3"}, lease=lease)
        holder.set("leased/b", "unleased")
        holder.delete("leased/c")
        other.set("plain", "lost with the server")
        watch = other.watch("leased/", current=True)
        assert {watch.next(10).key for _ in range(2)} == {"leased/a", "leased/b"}
        with ThreadPoolExecutor(3) as pool:
            waits = [
                pool.submit(other.wait_for_key, "later", 30),
                pool.submit(other.wait_for_keys, "many/*", 2, None, 30),
                pool.submit(other.barrier, "gate", 2, 30),
            ]
            time.sleep(0.2)
            server.kill()
            server.start_again()
            # The keeper of the lease notices by itself.
            assert holder.wait_for_key("leased/a", 30) == b"1"
            assert not any(wait.done() for wait in waits)
            holder.multi_set({"many/1": "", "many/2": "", "later": "now"})
            holder.barrier("gate", 2, 30)
            assert waits[0].result(30) == b"now"
            assert waits[1].result(30) == ["many/1", "many/2"]
            waits[2].result(30)
        assert other.list_keys("leased/") == ["leased/a"]
        assert not other.exists("plain")
        # Merged: what is different now, and what is not any more.
        last: dict[str, bytes | None] = {"leased/a": b"1", "leased/b": b"unleased"}
        while last != {"leased/a": b"1", "leased/b": None}:
            event = watch.next(10)
            last[event.key] = event.value
        holder.set("leased/z", "9")
        assert watch.next(10)[:3] == ("put", "leased/z", b"9")


@pytest.mark.proves("K9")
def test_a_watch_goes_on_after_a_restart_from_the_journal(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(journal=tmp_path / "journal")
    with connect(server.url) as store, connect(server.url) as other:
        other.multi_set({"w/old": "0", "w/changed": "0", "w/deleted": "0"})
        watch = store.watch("w/")
        other.set("w/a", "1")
        before = watch.next(10)
        assert before[:3] == ("put", "w/a", b"1")
        server.kill()
        server.start_again()
        # Before the watcher is back: it only reads when it is asked for the next event.
        other.set("w/changed", "2")
        other.delete("w/deleted")
        other.set("w/b", "2")
        events = [watch.next(10) for _ in range(3)]
        # What it knew already is not told again.
        assert {event.key: event.value for event in events} == {
            "w/changed": b"2",
            "w/deleted": None,
            "w/b": b"2",
        }
        assert all(event.revision > before.revision for event in events), "revisions went back"
        with pytest.raises(TimeoutError):
            watch.next(0.1)


@pytest.mark.proves("K9")
def test_a_server_that_stays_away_is_told_at_the_deadline(start_server: StartServer) -> None:
    server = start_server()
    store = connect(server.url, timeout=0.3)
    store.set("key", "x")
    server.kill()
    for call in (lambda: store.get("key"), lambda: store.wait_for_key("never", 0.3)):
        start = time.monotonic()
        with pytest.raises(ConnectionError, match="gone"):
            call()
        assert 0.3 <= time.monotonic() - start < 2
    server.start_again()
    store.set("key", "back")
    assert store.get("key") == b"back"
    store.close()


def test_leases_outlive_a_server_that_stands_still(start_server: StartServer) -> None:
    """Stopped for longer than they live: their renewals lie in the sockets, or come right after."""
    server = start_server()
    clients = [raw_client(server.port) for _ in range(300)]

    def send(client: socket.socket, number: int, op: int, body: bytes) -> None:
        client.sendall(frame(number, op, struct.pack("<Q", number) + body))

    for lease, client in enumerate(clients, 1):
        send(client, 1, OP_GRANT, struct.pack("<Qq", lease, 2 * 10**9))
    assert all(reply(client)[1] == 0 for client in clients)
    renewed, late = clients[:290], clients[290:]
    server.process.signal(SIGSTOP)
    time.sleep(2.5)
    for lease, client in enumerate(renewed, 1):
        send(client, 2, OP_REFRESH, struct.pack("<Q", lease))
    server.process.signal(SIGCONT)
    for lease, client in enumerate(late, 1 + len(renewed)):
        send(client, 2, OP_REFRESH, struct.pack("<Q", lease))
    alive = [reply(client)[2] == b"\x01" for client in clients]
    assert sum(alive) == len(clients)
    # Nobody renews them any more, and the clock goes on.
    with raw_client(server.port) as other:
        for lease in (1, 300):
            time.sleep(2.5 if lease == 1 else 0)
            send(other, lease + 10, OP_REFRESH, struct.pack("<Q", lease))
            assert reply(other)[2] == b"\x00", f"lease {lease} should have lapsed"
    for client in clients:
        client.close()


FORKING_HOST = """
import os, sys, time
from tensorbus.kvstore import StoreServer
server = StoreServer("127.0.0.1", 0, journal=sys.argv[1])
print(server.port)
sys.stdin.readline()
child = os.fork()
if child == 0:
    for stream in range(3):
        os.close(stream)  # who reads them waits for their end
    time.sleep(600)
    os._exit(0)
print(child)
sys.stdin.readline()
"""


def test_a_server_that_is_gone_is_gone_also_when_its_children_live(
    start_python: Start, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    host = start_python(FORKING_HOST, journal)
    port = int(host.line())
    with raw_client(port) as client, connect(f"tensorbus://127.0.0.1:{port}") as store:
        store.set("key", "x")
        host.tell("fork")
        child = int(host.line())
        try:
            host.kill()
            # Its clients are told at once,
            assert client.recv(1) == b""
            # and neither its port nor its journal is in use.
            with StoreServer("127.0.0.1", port, journal=str(journal)):
                assert store.get("key") == b"x"
        finally:
            os.kill(child, SIGKILL)


FORKING_CLIENT = """
import os, sys, time
from tensorbus.kvstore import connect
store = connect(sys.argv[1])
child = os.fork()
if child == 0:
    for stream in range(3):
        os.close(stream)  # who reads them waits for their end
    time.sleep(600)
    os._exit(0)
print(child)
store.barrier("gate", 2)
"""


def test_a_client_that_is_gone_is_gone_also_when_its_children_live(start_python: Start) -> None:
    with StoreServer("127.0.0.1", 0) as server:
        client = start_python(FORKING_CLIENT, server.url)
        child = int(client.line())
        try:
            eventually(lambda: server.stats().waits == 1, "it stands before the barrier")
            client.kill()
            eventually(lambda: server.stats().connections == 0, "the server notices")
        finally:
            os.kill(child, SIGKILL)


@pytest.mark.proves("K8")
def test_a_stopped_server_costs_no_more_than_the_deadline(start_server: StartServer) -> None:
    server = start_server()
    store = connect(server.url, timeout=0.3)
    server.process.signal(SIGSTOP)
    try:
        for call in (
            lambda: store.get("key"),
            lambda: store.set("key", "x"),
            lambda: store.wait_for_key("key", 0.3),
            lambda: store.barrier("gate", 2, 0.3),
        ):
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                call()
            assert 0.3 <= time.monotonic() - start < 2
        with pytest.raises(ConnectionError, match="did not answer"):
            connect(server.url, timeout=0.2)
    finally:
        server.process.signal(SIGCONT)
    store.timeout = 20
    store.set("key", "after")
    assert store.get("key") == b"after"
    store.barrier("gate", 1, 5)
    store.close()


def test_stop_sends_what_is_owed(start_server: StartServer) -> None:
    """Replies that a client has not read yet arrive before the connection ends."""
    server = start_server()
    with connect(server.url) as store:
        store.set("large", bytes(1 << 20), component="c")
    with raw_client(server.port) as client:
        for number in range(8):
            body = struct.pack("<I", 1) + text(b"/default/c/large")
            client.sendall(frame(number + 1, OP_GET, body))
        # The first bytes of an answer: all requests are being answered now.
        eventually(lambda: len(client.recv(1, socket.MSG_PEEK)) == 1, "answers")
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(lambda: [reply(client)[0] for _ in range(8)])
            server.process.signal(SIGTERM)
            assert read.result(20) == list(range(1, 9))
        number, code, _ = reply(client)
        assert (number, code != 0) == (0, True), "its farewell, to no request"
        assert client.recv(1) == b""
    assert server.process.wait() == 0, server.process.errors


def test_a_server_that_is_killed_again_at_once_confuses_nobody(start_server: StartServer) -> None:
    server = start_server()
    with connect(server.url) as store:
        for number in range(5):
            server.process.signal(SIGKILL)
            server.kill()
            server.start_again()
            store.set("key", str(number))
            assert store.get("key") == str(number).encode()
