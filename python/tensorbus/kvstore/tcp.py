"""A store over TCP: our server if there is one, else torch's own."""

from __future__ import annotations

import logging

from tensorbus import _core
from tensorbus.kvstore.core_store import CoreStore

logger = logging.getLogger("tensorbus")

# Only torch's own server is ever polled, and only for what its WAIT cannot express: a value, or
# some of several keys. This is the first pause between two looks, in seconds; it grows to 50 ms
# while nothing changes. To be read: changing it changes nothing.
POLL_INTERVAL: float = _core.POLL_INTERVAL


class TorchTCPStore(CoreStore):
    """A store at ``host:port`` that torch's ``TCPStore`` clients can share.

    With ``is_master`` this process hosts our server there (``port`` 0 picks a free one; see
    ``port``). A client sends our hello first and falls back to torch's protocol when the server
    does not understand it. With ``wait_for_workers`` the master waits until ``world_size`` clients
    have joined, torch's own among them.
    """

    def __init__(
        self,
        host: str,
        port: int,
        world_size: int,
        is_master: bool,
        timeout: float = 3600.0,
        wait_for_workers: bool = True,
        namespace: str = "default",
        component: str = "tensorbus",
    ) -> None:
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, not {world_size}")
        # Bad names are told before anything is started.
        _core.KeyScope(namespace, component)
        self._server = _core.StoreServer(host, port, allow_torch=True) if is_master else None
        self.host = host
        self.port = self._server.port if self._server is not None else port
        self.world_size = world_size
        self.is_master = is_master
        try:
            super().__init__(
                _core.connect_tcp(host, self.port, timeout), namespace, component, timeout
            )
            if wait_for_workers:
                self._core.join(timeout)
                if self._server is not None:
                    self._server.wait_for_workers(world_size, timeout)
        except BaseException:
            if self._server is not None:
                self._server.stop()
            raise

    def close(self, cleanup: bool = True) -> None:
        super().close(cleanup)
        if self._server is not None:
            self._server.stop()
