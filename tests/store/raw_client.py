"""Our protocol spoken by hand, for what no client of ours would send."""

import random
import socket
import struct

HELLO = struct.Struct("<4sHH16s16s")
FRAME = struct.Struct("<IQB")
OP_GET, OP_WAIT, OP_SET, OP_ADD, OP_SWAP, OP_GRANT, OP_REFRESH = 1, 4, 16, 17, 18, 23, 24
TORCH_HELLO = b"\0" + struct.pack("<I", 0x3C85F7CE)


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def raw_client(port: int, session: bytes | None = None) -> socket.socket:
    """A connection on which hands are shaken."""
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
    """The next answer: the request's number, the code, the body."""
    size, number, code = FRAME.unpack(receive(client, FRAME.size))
    return number, code, receive(client, size - 9)
