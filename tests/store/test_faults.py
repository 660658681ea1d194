"""What goes wrong between clients and servers: killed, stopped, cut off, slow, hostile."""

import json
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest
import tensorbus
import torch.distributed as dist
from processes import Process, ServerProcess, Start, StartServer, eventually
from tensorbus.kvstore import StoreServer, connect

HELLO = struct.Struct("<4sHH16s16s")
FRAME = struct.Struct("<IQB")
OP_GET, OP_WAIT, OP_SET, OP_ADD = 1, 4, 16, 17
TORCH_HELLO = b"\0" + struct.pack("<I", 0x3C85F7CE)


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def raw_client(port: int, session: bytes | None = None) -> socket.socket:
    """Speaks our protocol by hand; hands are shaken."""
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(20)
    session = session if session is not None else random.randbytes(16)
    client.sendall(HELLO.pack(b"TBUS", 1, 0, session, random.randbytes(16)))
    assert receive(client, HELLO.size).startswith(b"TBUS")
    return client


def receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        assert piece, "the server closed the connection"
        data += piece
    return data


def frame(number: int, op: int, body: bytes) -> bytes:
    return FRAME.pack(len(body) + 9, number, op) + body


def reply(client: socket.socket) -> tuple[int, int, bytes]:
    size, number, code = FRAME.unpack(receive(client, FRAME.size))
    return number, code, receive(client, size - 9)


# --- the server dies and comes back -----------------------------------------------------------

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
        # Merged: what is there now, and what is not any more.
        last: dict[str, bytes | None] = {}
        while last != {"leased/a": b"1", "leased/b": None}:
            event = watch.next(10)
            last[event.key] = event.value
        holder.set("leased/z", "9")
        assert watch.next(10)[:3] == ("put", "leased/z", b"9")


@pytest.mark.proves("K9")
def test_a_watch_and_a_barrier_survive_a_restart_from_the_journal(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(journal=tmp_path / "journal")
    with connect(server.url) as store, connect(server.url) as other:
        watch = store.watch("w/")
        other.set("w/a", "1")
        before = watch.next(10)
        server.kill()
        server.start_again()
        other.set("w/b", "2")
        events = [watch.next(10)]
        while events[-1].key != "w/b":
            events.append(watch.next(10))
        assert {event.key: event.value for event in events} | {"w/a": b"1"} == {
            "w/a": b"1",
            "w/b": b"2",
        }
        assert events[-1].revision > before.revision, "revisions went back"


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
        assert client.recv(1) == b""
    assert server.process.wait() == 0, server.process.errors


# --- clients die ------------------------------------------------------------------------------

WAITER = """
import sys
from tensorbus.kvstore import connect
store = connect(sys.argv[1])
print("waiting")
{call}
"""


@pytest.mark.parametrize(
    "call", ["store.wait_for_key('x')", "store.wait_for_keys('x*', 2)", "store.barrier('gate', 2)"]
)
def test_a_client_killed_while_waiting_leaves_nothing(start_python: Start, call: str) -> None:
    with StoreServer("127.0.0.1", 0) as server:
        child = start_python(WAITER.format(call=call), server.url)
        child.line()
        eventually(lambda: server.stats().waits == 1, "the wait arrives")
        child.kill()
        eventually(lambda: server.stats().connections == 0, "the server notices")
        with connect(server.url) as store:
            eventually(lambda: server.stats().waits == 0, "the wait is forgotten")
            with pytest.raises(TimeoutError, match="1 of 2"):
                store.barrier("gate", 2, 0.05)


@pytest.mark.parametrize("cut", [1, 5, 12, 13, 20, 40])
def test_a_client_that_dies_in_the_middle_of_a_frame_changes_nothing(cut: int) -> None:
    with StoreServer("127.0.0.1", 0) as server, connect(server.url) as store:
        whole = frame(
            1, OP_SET, struct.pack("<QQI", 1, 0, 1) + text(b"/default/tensorbus/k") + text(b"v")
        )
        assert cut < len(whole)
        client = raw_client(server.port)
        client.sendall(whole[:cut])
        client.close()
        eventually(lambda: server.stats().connections == 1, "the server notices")
        assert store.get("k") is None
        with raw_client(server.port) as other:
            other.sendall(whole)
            assert reply(other)[1] == 0
        assert store.get("k") == b"v"


def connections_come_and_go(server: ServerProcess, count: int, batch: int) -> None:
    with connect(server.url) as store:
        store.set("key", "x")
        descriptors, memory = server.process.open_descriptors(), server.process.resident_bytes()
        rng = random.Random(1)
        for _ in range(count // batch):
            sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(batch)]
            for client in sockets:
                greeting = rng.choice(
                    [
                        b"",
                        b"T",
                        HELLO.pack(b"TBUS", 1, 0, rng.randbytes(16), rng.randbytes(16)),
                        TORCH_HELLO,
                        TORCH_HELLO[:3],
                        b"GET / HTTP/1.1\r\n\r\n",
                    ]
                )
                client.sendall(greeting)
            for client in sockets:
                if rng.random() < 0.5:
                    # Reset instead of a goodbye.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
            assert store.get("key") == b"x"
        eventually(
            lambda: server.process.open_descriptors() == descriptors, "descriptors are given back"
        )
        assert server.process.resident_bytes() < memory + 32 * (1 << 20)


def test_a_thousand_connections_come_and_go(start_server: StartServer) -> None:
    connections_come_and_go(start_server(), 1000, 100)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_thousand_connections_come_and_go(start_server: StartServer) -> None:
    connections_come_and_go(start_server(), 100_000, 500)


# --- slow and hostile clients -----------------------------------------------------------------


def assert_bounded(process: Process, megabytes: int) -> None:
    assert process.resident_bytes() < megabytes * (1 << 20)


def test_who_asks_and_does_not_read_makes_nobody_hold_the_answers(
    start_server: StartServer,
) -> None:
    """10,000 requests for 1 MiB each: 10 GiB of replies, were they all made at once."""
    server = start_server()
    with connect(server.url, component="c") as store:
        store.set("large", b"x" * (1 << 20))
        ask = struct.pack("<I", 1) + text(b"/default/c/large")
        requests = b"".join(frame(number, OP_GET, ask) for number in range(1, 10_001))
        with raw_client(server.port) as client:
            client.settimeout(1)
            with pytest.raises(TimeoutError):
                client.sendall(requests * 20)
            for _ in range(20):
                assert store.get("large") == b"x" * (1 << 20)
            assert_bounded(server.process, 300)
            # Still served, in order, as soon as it reads.
            client.settimeout(20)
            for number in range(1, 40):
                assert reply(client)[0] == number
        assert store.exists("large")


def test_a_torch_client_that_asks_for_too_much_is_closed(start_server: StartServer) -> None:
    server = start_server()
    with connect(server.url, component="c") as store:
        store.set("large", b"x" * (1 << 20))
        key = b"/default/c/large"
        keys = (struct.pack("<Q", len(key)) + key) * 100_000
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.settimeout(20)
            client.sendall(TORCH_HELLO + b"\x0a" + struct.pack("<Q", 100_000) + keys)
            with pytest.raises((ConnectionError, AssertionError)):
                receive(client, 1)
        assert store.exists("large")
        assert_bounded(server.process, 200)


def test_who_never_settles_its_replies_is_refused_in_time(start_server: StartServer) -> None:
    server = start_server()
    with connect(server.url, component="c") as store, raw_client(server.port) as client:
        store.set("large", b"x" * (1 << 20))
        # Swaps that fail: each reply holds the value, and none is ever settled.
        body = struct.pack("<Q", 0) + text(b"/default/c/large") + b"\x01" + text(b"y") + text(b"z")
        refusals = 0
        for number in range(1, 200):
            client.sendall(frame(number, 18, body))
            refusals += reply(client)[1] != 0
        assert refusals > 100
        assert_bounded(server.process, 300)
        assert store.exists("large")


def test_a_long_wait_makes_nobody_remember_other_replies(start_server: StartServer) -> None:
    """One thread waits, another one changes things: the server forgets what was answered."""
    server = start_server()
    with connect(server.url) as store, ThreadPoolExecutor(2) as pool:
        waits = [
            pool.submit(store.wait_for_key, "end", 60),
            pool.submit(store.barrier, "end", 2, 60),
        ]
        store.set("large", bytes(1 << 20))
        for _ in range(100):
            swapped, value = store.compare_and_set("large", "something else", "x")
            assert not swapped
            assert value == bytes(1 << 20)
        assert_bounded(server.process, 80)
        store.set("end", "")
        store.barrier("end", 2, 20)
        for wait in waits:
            wait.result(20)


def test_a_watcher_that_does_not_read_harms_nobody(start_server: StartServer) -> None:
    server = start_server()
    with connect(server.url) as watcher, connect(server.url) as writer:
        watch = watcher.watch("w/")
        for number in range(60):
            writer.set(f"w/{number % 3}", bytes([number]) * (4 << 20))
        assert_bounded(server.process, 500)
        # What it missed is merged: the last state of each key is told.
        last: dict[str, int] = {}
        while len(last) < 3 or sorted(last.values()) != [57, 58, 59]:
            event = watch.next(20)
            assert event.value is not None
            last[event.key] = event.value[0]
        assert writer.exists("w/0")


def test_an_answer_that_is_too_large_is_an_error(start_server: StartServer) -> None:
    server = start_server()
    with connect(server.url, timeout=20) as store:
        for start in range(0, 9000, 1000):
            names = (f"{i:05}" + "k" * 8000 for i in range(start, start + 1000))
            store.multi_set(dict.fromkeys(names, ""))
        with pytest.raises(ValueError, match="too large"):
            store.list_keys()
        with pytest.raises(ValueError, match="too large"):
            store.wait_for_keys("*", 9000, None, 20)
        assert len(store.list_keys("0000")) == 10
        with pytest.raises(ValueError, match="too much"):
            store.compare_and_set("key", bytes(65 << 20), "x")
        with pytest.raises(ValueError, match="too much"):
            store.multi_set({f"{i}": bytes(8 << 20) for i in range(9)})
        assert store.get("key") is None


def test_close_hangs_up_also_while_a_thread_is_blocked() -> None:
    with StoreServer("127.0.0.1", 0) as server:
        store = connect(server.url)
        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(store.wait_for_key, "never", 30)
            eventually(lambda: server.stats().waits == 1, "the wait arrives")
            store.close()
            with pytest.raises(tensorbus.CancelledError):
                blocked.result(5)
        eventually(lambda: server.stats().connections == 0, "the connection ends")


def test_queues_of_torch_are_no_changes_of_keys(store_server: StoreServer, unique: str) -> None:
    queue = dist.TCPStore("127.0.0.1", store_server.port, is_master=False)
    with connect(store_server.url, namespace=unique) as store, store.watch() as watch:
        queue.queue_push(f"{unique}/tensorbus/queue", "element")
        queue.queue_pop(f"{unique}/tensorbus/queue")
        store.set("after", "")
        assert watch.next(10).key == "after"


# --- tokens -----------------------------------------------------------------------------------


def torch_client(port: int) -> dist.TCPStore:
    from datetime import timedelta

    return dist.TCPStore(
        "127.0.0.1", port, is_master=False, timeout=timedelta(seconds=2), wait_for_workers=False
    )


def test_a_token_is_asked_for_and_proven(start_server: StartServer) -> None:
    server = start_server(token="secret")
    with connect(server.url, token="secret", timeout=5) as store:
        store.set("key", "x")
        for token, reason in (("wrong", "refused our token"), (None, "asks for a token")):
            start = time.monotonic()
            with pytest.raises(tensorbus.AuthenticationError, match=reason) as caught:
                connect(server.url, token=token, timeout=5)
            assert time.monotonic() - start < 4, "hopeless attempts are not repeated"
            assert "secret" not in str(caught.value)
        with pytest.raises(ConnectionError, match="token"):
            connect(f"tcpstore://127.0.0.1:{server.port}", timeout=5)
        with pytest.raises(dist.DistError):
            torch_client(server.port)
        assert store.get("key") == b"x"
    server.process.signal(SIGTERM)
    server.process.wait()
    assert "secret" not in server.process.errors
    assert "allow-torch" in server.process.errors


def test_torch_clients_can_be_admitted_beside_a_token(start_server: StartServer) -> None:
    server = start_server(token="secret", allow_torch=True)
    torch_store = torch_client(server.port)
    torch_store.set("default/tensorbus/key", "from torch")
    with connect(server.url, token="secret") as store:
        assert store.get("key") == b"from torch"
    with pytest.raises(tensorbus.AuthenticationError):
        connect(server.url, token="wrong", timeout=5)


def test_a_server_that_does_not_know_the_token_is_not_trusted() -> None:
    """An impostor that asks for a proof and cannot give one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            client, _ = listener.accept()
            with client:
                receive(client, HELLO.size)
                client.sendall(
                    HELLO.pack(b"TBUS", 1, 1, random.randbytes(16), random.randbytes(16))
                )
                receive(client, 32)
                client.sendall(random.randbytes(32))

        thread = threading.Thread(target=pretend)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(tensorbus.AuthenticationError, match="not to be trusted"):
            connect(f"tensorbus://127.0.0.1:{port}", token="secret", timeout=5)
        thread.join()


def test_a_server_that_is_killed_again_at_once_confuses_nobody(start_server: StartServer) -> None:
    server = start_server()
    with connect(server.url) as store:
        for number in range(5):
            server.process.signal(SIGKILL)
            server.kill()
            server.start_again()
            store.set("key", str(number))
            assert store.get("key") == str(number).encode()
