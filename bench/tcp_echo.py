"""A plain TCP echo in Python: what push-pull is compared with.

Several clients at one server, which answers each as it comes. One client measures; the others ask
for 64 bytes for as long as the one that measures does. Standard library only: programs in C++ run
this file, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import socket
import time

LARGEST = 1792 << 10
REST = bytes(8)  # in place of a size, from the client that measures: nobody else is served


def address() -> tuple[str, int]:
    return os.environ["ECHO_HOST"], int(os.environ["ECHO_PORT"])


def receive(connection: socket.socket, buffer: memoryview) -> None:
    got = 0
    while got < len(buffer):
        count = connection.recv_into(buffer[got:])
        if count == 0:
            raise ConnectionError
        got += count


def serve() -> None:
    """The size of each message comes first."""
    with socket.create_server(address()) as listener:
        clients = [listener.accept()[0] for _ in range(int(os.environ["ECHO_CLIENTS"]))]
    ready = selectors.DefaultSelector()
    for client in clients:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ready.register(client, selectors.EVENT_READ)
    size = bytearray(8)
    buffer = bytearray(LARGEST)
    resting: list[socket.socket] = []
    with contextlib.suppress(ConnectionError):
        while True:
            for key, _ in ready.select():
                client = key.fileobj
                assert isinstance(client, socket.socket)
                if client in resting:  # its message came before the rest was wanted
                    continue
                receive(client, memoryview(size))
                if size == REST:
                    resting = [other for other in clients if other is not client]
                    for other in resting:
                        ready.unregister(other)
                    continue
                for other in resting:
                    ready.register(other, selectors.EVENT_READ)
                resting = []
                message = memoryview(buffer)[: int.from_bytes(size, "little")]
                receive(client, message)
                client.sendall(message)


def connect() -> socket.socket:
    end = time.monotonic() + 30
    while True:
        try:
            connection = socket.create_connection(address())
        except ConnectionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def keep_asking() -> None:
    connection = connect()
    message = (64).to_bytes(8, "little") + bytes(64)
    back = memoryview(bytearray(64))
    with contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(message)
            receive(connection, back)


ROLES = {"serve": serve, "keep_asking": keep_asking}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=ROLES)
    ROLES[parser.parse_args().role]()


if __name__ == "__main__":
    main()
