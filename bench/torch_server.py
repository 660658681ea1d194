"""torch's own TCPStore server (libuv): prints its port, serves until its input ends."""

import socket
import sys

import torch.distributed

# A socket of our own: it listens on one address and has a free port.
listener = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
port = listener.getsockname()[1]
server = torch.distributed.TCPStore(
    "127.0.0.1",
    port,
    is_master=True,
    wait_for_workers=False,
    master_listen_fd=listener.detach(),
    use_libuv=True,
)
print(port, flush=True)
sys.stdin.read()
