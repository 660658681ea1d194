"""A store in etcd, through its JSON gateway."""

from __future__ import annotations

import logging

from tensorbus import _core
from tensorbus.kvstore.core_store import CoreStore

logger = logging.getLogger("tensorbus")


class EtcdStore(CoreStore):
    """A store in the etcd at ``host:port``.

    ``connect("etcd://...")`` also takes several hosts, user and password. With ``cleanup`` the keys
    that its component left behind are removed first.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 2379,
        timeout: float | None = None,
        cleanup: bool = False,
        namespace: str = "default",
        component: str = "tensorbus",
    ) -> None:
        bracketed = f"[{host}]" if ":" in host else host
        url = _core.StoreUrl.parse(f"etcd://{bracketed}:{port}")
        super().__init__(_core.connect(url, timeout), namespace, component, timeout)
        self.host = host
        self.port = port
        if cleanup:
            for key in self.list_keys():
                self.delete(key)
