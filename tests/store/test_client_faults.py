"""Clients that die, leave, or never stop coming: the server and the others do not care."""

import random
import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorbus
from processes import ServerProcess, Start, StartServer, eventually
from raw_client import HELLO, OP_SET, TORCH_HELLO, frame, raw_client, reply, text
from tensorbus.kvstore import StoreServer, connect

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
