"""Servers that ask for a token, and servers that only pretend to know it."""

import random
import socket
import threading
import time
from datetime import timedelta
from signal import SIGTERM

import pytest
import tensorbus
import torch.distributed as dist
from processes import StartServer
from raw_client import HELLO, receive
from tensorbus.kvstore import connect


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
