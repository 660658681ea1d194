"""Clients that ask for more than they read, or than anybody should hold: memory is bounded."""

import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import Process, StartServer
from raw_client import (
    OP_GET,
    OP_SWAP,
    OP_WAIT,
    TORCH_HELLO,
    frame,
    raw_client,
    receive,
    reply,
    text,
)
from tensorbus.kvstore import StoreServer, connect


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
            client.sendall(frame(number, OP_SWAP, body))
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


def pattern_wait(number: int, pattern: bytes) -> bytes:
    return frame(number, OP_WAIT, text(pattern) + struct.pack("<BQB", 1, 1, 0) + text(b""))


def test_the_patterns_of_one_client_are_counted(store_server: StoreServer) -> None:
    """Every change is compared with each of them, whoever makes it."""
    with connect(store_server.url) as store, raw_client(store_server.port) as client:
        for number in range(1, 1001):
            client.sendall(pattern_wait(number, b"/default/*/greedy %d" % number))
        client.sendall(pattern_wait(1001, b"/default/*/one more"))
        number, code, message = reply(client)
        assert (number, code != 0) == (1001, True)
        assert b"1000 patterns" in message
        # One that ends makes room for another; others have their own.
        store.set("greedy 7", "x")
        assert reply(client)[:2] == (7, 0)
        client.sendall(pattern_wait(1002, b"/default/*/one more"))
        store.set("one more", "x")
        assert reply(client)[:2] == (1002, 0)
        assert store.wait_for_keys("one*", 1, value=None, timeout=5) == ["one more"]
