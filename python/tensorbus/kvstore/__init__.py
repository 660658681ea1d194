"""Find each other, exchange small values, wait for values.

>>> store = tensorbus.kvstore.connect("tensorbus://127.0.0.1:29500")
>>> store.set("rank/0", "ready")
>>> store.wait_for_keys("rank/*", expected_count=4, value="ready", timeout=60)
"""

from __future__ import annotations

from tensorbus import _core
from tensorbus._core import StoreServer
from tensorbus.kvstore.base import KVStore
from tensorbus.kvstore.core_store import CoreStore
from tensorbus.kvstore.etcd import EtcdStore
from tensorbus.kvstore.lease import Lease
from tensorbus.kvstore.tcp import TorchTCPStore
from tensorbus.kvstore.watch import StoreEvent, Watch

__all__ = [
    "CoreStore",
    "EtcdStore",
    "KVStore",
    "Lease",
    "StoreEvent",
    "StoreServer",
    "TorchTCPStore",
    "Watch",
    "connect",
    "create_store",
]


def connect(
    url: str,
    *,
    timeout: float | None = 30.0,
    namespace: str = "default",
    component: str = "tensorbus",
    token: str | None = None,
) -> CoreStore:
    """Connects to ``scheme://[user:password@]host[:port][,host:port...][/namespace]``.

    Schemes: ``tensorbus`` (our server), ``tcpstore`` (torch's), ``etcd`` (several hosts allowed)
    and ``memory`` (a name, shared inside this process). ``timeout`` bounds connecting and every
    later call that has none of its own. ``token`` (default: ``TENSORBUS_TOKEN``) is proven to a
    server that asks for it.
    """
    parsed = _core.StoreUrl.parse(url)
    space = parsed.namespace_or(namespace)
    # Bad names are told before anybody is called.
    _core.KeyScope(space, component)
    return CoreStore(_core.connect(parsed, timeout, token), space, component, timeout)


def create_store(
    host: str = "localhost",
    port: int | None = None,
    backend: str = "tcp",
    timeout: float = 3600.0,
    namespace: str = "default",
    component: str = "tensorbus",
) -> CoreStore:
    """A store for this process by its place in the job, as torchrun describes it.

    ``backend="tcp"`` (port 29500): rank 0 (env ``RANK``, default 0) hosts the server if nothing
    listens there yet, and waits for ``WORLD_SIZE`` (default 1) clients. ``backend="etcd"``: port
    2379.
    """
    if backend == "etcd":
        return EtcdStore(host, port or 2379, timeout, False, namespace, component)
    if backend != "tcp":
        raise ValueError(f'unknown backend "{backend}": use "tcp" or "etcd"')
    port = 29500 if port is None else port
    rank, world_size = _env_number("RANK", 0), _env_number("WORLD_SIZE", 1)
    hosts = rank == 0 and not _listens(host, port)
    return TorchTCPStore(
        host, port, world_size, hosts, timeout, namespace=namespace, component=component
    )


def _env_number(name: str, default: int) -> int:
    text = _core.variable(name)
    if text is None:
        return default
    if not text.isdecimal():
        raise ValueError(f"environment variable {name} must be a whole number >= 0, not {text!r}")
    return int(text)


def _listens(host: str, port: int) -> bool:
    import socket

    if port == 0:
        return False
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False
