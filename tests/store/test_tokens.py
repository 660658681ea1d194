"""Servers that ask for a token, and servers that only pretend to know it."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from signal import SIGTERM

import pytest
import tensorbus
import torch.distributed as dist
from processes import StartServer
from raw_client import HELLO, receive
from tensorbus.kvstore import StoreServer, TorchTCPStore, connect


def torch_client(port: int) -> dist.TCPStore:
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


PROOF_SIZE = 32


def hello(flags: int) -> bytes:
    return HELLO.pack(b"TBUS", 1, flags, random.randbytes(16), random.randbytes(16))


@contextmanager
def impostor(greeting: bytes, proof: bytes) -> Iterator[int]:
    """Says these bytes to every client, whatever it hears; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            with suppress(OSError, AssertionError):
                while True:
                    client, _ = listener.accept()
                    with client, suppress(OSError, AssertionError):
                        receive(client, HELLO.size)
                        client.sendall(greeting)
                        receive(client, PROOF_SIZE)
                        client.sendall(proof)
                        client.recv(1)

        thread = threading.Thread(target=pretend)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def overheard(port: int, token: str) -> tuple[bytes, bytes]:
    """The hello and the proof of a real server, from a connection that somebody listened to."""
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay() -> None:
            client, _ = listener.accept()
            with client, socket.create_connection(("127.0.0.1", port)) as server:
                for size in (HELLO.size, PROOF_SIZE):
                    server.sendall(receive(client, size))
                    said.append(receive(server, size))
                    client.sendall(said[-1])

        thread = threading.Thread(target=relay)
        thread.start()
        connect(f"tensorbus://127.0.0.1:{listener.getsockname()[1]}", token=token).close()
        thread.join()
    return said[0], said[1]


def test_an_impostor_is_not_trusted_whatever_it_says(start_server: StartServer) -> None:
    server = start_server(token="secret")
    impostors = [
        ("asks for no token", hello(flags=0), b""),
        ("not to be trusted", hello(flags=1), random.randbytes(PROOF_SIZE)),
        # What a real one said to somebody else.
        ("not to be trusted", *overheard(server.port, "secret")),
    ]
    for reason, greeting, proof in impostors:
        with (
            impostor(greeting, proof) as port,
            pytest.raises(tensorbus.AuthenticationError, match=reason),
        ):
            connect(f"tensorbus://127.0.0.1:{port}", token="secret", timeout=5)
    connect(server.url, token="secret", timeout=5).close()


def test_who_takes_the_servers_place_without_the_token_is_refused(
    start_server: StartServer,
) -> None:
    """A client that was connected and comes back."""
    server = start_server(token="secret")
    with connect(server.url, token="secret", timeout=5) as store:
        store.set("key", "x")
        server.kill()
        with (
            StoreServer("127.0.0.1", server.port),
            pytest.raises(tensorbus.AuthenticationError, match="asks for no token"),
        ):
            store.set("key", "for the impostor")
        server.start_again()
        store.set("key", "again")


def test_a_token_is_not_left_out_for_torchs_protocol(
    monkeypatch: pytest.MonkeyPatch, store_server: StoreServer
) -> None:
    with pytest.raises(tensorbus.AuthenticationError, match="cannot carry"):
        connect(f"tcpstore://127.0.0.1:{store_server.port}", token="secret", timeout=5)
    # One that closes at our hello, as torch's does; torch's would be spoken without a token.
    monkeypatch.setenv("TENSORBUS_TOKEN", "secret")
    with impostor(b"", b"") as port:
        start = time.monotonic()
        with pytest.raises(tensorbus.AuthenticationError, match="cannot carry"):
            TorchTCPStore("127.0.0.1", port, 1, False, 2.0)
        assert time.monotonic() - start < 10
