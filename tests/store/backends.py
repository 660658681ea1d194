"""The backends that the conformance suite runs against."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
import tensorbus
from tensorbus.kvstore import CoreStore, StoreServer, connect
from torch_servers import torch_server


def etcd_is_built_in() -> bool:
    """Switches itself on with the backend."""
    try:
        connect("etcd://127.0.0.1:1", timeout=0.01).close()
    except tensorbus.UnsupportedError:
        return False
    except (ConnectionError, TimeoutError):
        pass
    return True


NAMES = ["memory", "tensorbus", "tcpstore-ours", "tcpstore-torch", "etcd"]
NO_ETCD = pytest.mark.skip(reason="etcd:// is not in this build")
ALL = [
    pytest.param(name, marks=NO_ETCD) if name == "etcd" and not etcd_is_built_in() else name
    for name in NAMES
]


class Backend:
    """One way to reach a store, with a namespace that no other test uses."""

    def __init__(self, name: str, url: str, namespace: str) -> None:
        self.name = name
        self.url = url
        self.namespace = namespace
        self._stores: list[CoreStore] = []

    @property
    def needs_candidates(self) -> bool:
        return self.name.startswith("tcpstore")

    @property
    def scheme(self) -> str:
        return self.url.split(":", 1)[0]

    def connect(self, *, timeout: float = 20.0, component: str = "test") -> CoreStore:
        """Another client, closed when the test is over."""
        store = connect(self.url, timeout=timeout, namespace=self.namespace, component=component)
        self._stores.append(store)
        return store

    def close(self) -> None:
        for store in self._stores:
            store.close()


class Servers:
    """Started when first asked for, and then kept."""

    def __init__(self, request: pytest.FixtureRequest, ours: StoreServer) -> None:
        self._request = request
        self._ours = ours
        self._torch: AbstractContextManager[int] | None = None
        self._torch_port = 0

    def url(self, name: str, unique: str) -> str:
        if name == "memory":
            return f"memory://{unique}"
        if name == "tensorbus":
            return self._ours.url
        if name == "tcpstore-ours":
            return f"tcpstore://127.0.0.1:{self._ours.port}"
        if name == "etcd":
            return f"etcd://127.0.0.1:{self._request.getfixturevalue('etcd')}"
        if self._torch is None:
            self._torch = torch_server(libuv=True)
            self._torch_port = self._torch.__enter__()
        return f"tcpstore://127.0.0.1:{self._torch_port}"

    def close(self) -> None:
        if self._torch is not None:
            self._torch.__exit__(None, None, None)


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, store_server: StoreServer) -> Iterator[Servers]:
    servers = Servers(request, store_server)
    yield servers
    servers.close()


@pytest.fixture(params=ALL)
def backend(request: pytest.FixtureRequest, servers: Servers, unique: str) -> Iterator[Backend]:
    backend = Backend(request.param, servers.url(request.param, unique), unique)
    yield backend
    backend.close()


@pytest.fixture
def store(backend: Backend) -> CoreStore:
    return backend.connect()
