"""torch's own store servers, for tests."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def torch_server(*, libuv: bool, port: int = 0) -> Iterator[int]:
    """Serves from a thread of this process; gives the port."""
    # torch's server asks the name service about each client. With a socket of our own it sees
    # 127.0.0.1, which /etc/hosts knows, and not an address mapped to IPv6, which can take 5 s.
    listener = socket.create_server(("127.0.0.1", port))
    port = listener.getsockname()[1]
    master = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=libuv,
    )
    try:
        yield port
    finally:
        del master
