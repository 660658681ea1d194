"""Bad input: each a clear error, before anything is sent or started."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorbus
from backends import Backend
from processes import free_port
from tensorbus.kvstore import (
    CoreStore,
    EtcdStore,
    StoreServer,
    TorchTCPStore,
    connect,
    create_store,
)

NAN = float("nan")


@pytest.mark.parametrize("name", ["a/b", "/", ""])
def test_names_of_scopes_hold_no_slash(backend: Backend, name: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        connect(backend.url, namespace=name)
    with pytest.raises(ValueError, match="component"):
        connect(backend.url, component=name)
    with pytest.raises(ValueError, match="component"):
        backend.connect().get("key", component=name)


@pytest.mark.proves("K8")
@pytest.mark.parametrize("timeout", [-1, -0.001, NAN, float("-inf")])
def test_bad_timeouts_are_told(backend: Backend, store: CoreStore, timeout: float) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.wait_for_key("k", timeout),
        lambda: store.wait_for_value("k", "v", timeout),
        lambda: store.wait_for_keys("k", 1, "1", timeout, ["k"]),
        lambda: store.barrier("b", 2, timeout),
        lambda: connect(backend.url, timeout=timeout),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="timeout"):
            call()


@pytest.mark.parametrize("value", [1, 1.5, None, ["x"], object()])
def test_values_of_wrong_types_are_told(store: CoreStore, value: object) -> None:
    with pytest.raises(TypeError, match="str or bytes-like"):
        store.set("key", value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="str or bytes-like"):
        store.compare_and_set("key", "x", value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="str or bytes-like"):
        store.wait_for_value("key", value, 0)  # type: ignore[arg-type]
    assert not store.exists("key")


def test_keys_of_wrong_types_are_told(store: CoreStore) -> None:
    for key in (1, None, b"bytes"):
        for call in (store.get, store.exists, store.delete, store.wait_for_key):
            with pytest.raises(TypeError, match="a key must be str, not"):
                call(key)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.add("key", "1")  # type: ignore[arg-type]


def test_impossible_counts_are_told(store: CoreStore) -> None:
    with pytest.raises(ValueError, match="expected_count"):
        store.wait_for_keys("k", -1, candidate_keys=["k"])
    for members in (0, -1):
        with pytest.raises(ValueError, match="member"):
            store.barrier("b", members)


def test_a_sum_beyond_64_bits_is_an_error(backend: Backend) -> None:
    if backend.name.startswith("tcpstore"):
        pytest.skip("torch's server wraps around")
    store = backend.connect()
    store.set("n", str(2**63 - 1))
    with pytest.raises(ValueError, match="64 bits"):
        store.add("n", 1)
    assert store.get("n") == str(2**63 - 1).encode()
    with pytest.raises(TypeError):
        store.add("n", 2**63)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("127.0.0.1:29500", "no scheme"),
        ("redis://127.0.0.1", "unknown scheme"),
        ("tensorbus://", "host is missing"),
        ("tensorbus://127.0.0.1:http", "not a port"),
        ("tensorbus://127.0.0.1:0", "not a port"),
        ("tensorbus://127.0.0.1:65536", "not a port"),
        ("tensorbus://::1:29500", "brackets"),
        ("tensorbus://[::1:29500", "lacks"),
        ("tensorbus://a:1,b:2", "several hosts"),
        ("tensorbus://user:secret@127.0.0.1", "etcd only"),
        ("tensorbus://127.0.0.1/a/b", "namespace"),
        ("etcd://us%zzer@127.0.0.1", "hexadecimal"),
        ("memory://", "needs a name"),
    ],
)
def test_bad_urls_are_told(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        connect(url, timeout=1)
    assert "secret" not in str(caught.value)


def test_two_namespaces_are_one_too_many() -> None:
    with pytest.raises(ValueError, match="namespace"):
        connect("memory://bad/one", namespace="two")
    with connect("memory://good/one", namespace="one") as store:
        assert store.namespace == "one"


@pytest.mark.proves("K8")
@pytest.mark.parametrize("scheme", ["tensorbus", "tcpstore"])
def test_nobody_there_is_told_at_the_deadline(scheme: str) -> None:
    port = free_port()
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=rf"127\.0\.0\.1:{port}"):
        connect(f"{scheme}://127.0.0.1:{port}", timeout=0.2)
    assert 0.2 <= time.monotonic() - start < 2


@pytest.mark.parametrize("scheme", ["tensorbus", "tcpstore"])
def test_an_unknown_host_is_told(scheme: str) -> None:
    with pytest.raises(ConnectionError, match=r"host\.invalid"):
        connect(f"{scheme}://host.invalid:1", timeout=0.2)


def test_a_server_of_another_kind_is_told() -> None:
    """One that accepts and says nothing, and one that says something else."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionError):
            connect(f"tensorbus://127.0.0.1:{port}", timeout=0.3)
        with pytest.raises(ConnectionError):
            connect(f"tcpstore://127.0.0.1:{port}", timeout=0.3)


def test_a_port_in_use_is_told(store_server: StoreServer) -> None:
    with pytest.raises(RuntimeError, match=rf"{store_server.port}.*in use.*another port"):
        StoreServer("127.0.0.1", store_server.port)
    with pytest.raises(RuntimeError, match="in use"):
        TorchTCPStore("127.0.0.1", store_server.port, 1, True)


def test_a_server_listens_only_where_it_may() -> None:
    with pytest.raises(RuntimeError, match=r"192\.0\.2\.1.*address of this machine"):
        StoreServer("192.0.2.1", 0)
    with pytest.raises(ConnectionError, match=r"host\.invalid"):
        StoreServer("host.invalid", 0)
    for port in (-1, 65536, "x"):
        with pytest.raises((TypeError, ValueError)):
            StoreServer("127.0.0.1", port)  # type: ignore[arg-type]


def test_create_store_knows_two_backends() -> None:
    with pytest.raises(ValueError, match='unknown backend "redis"'):
        create_store(backend="redis")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("RANK", "zero"),
        ("RANK", "-1"),
        ("RANK", "1.5"),
        ("WORLD_SIZE", "many"),
        ("WORLD_SIZE", "0"),
    ],
)
def test_numbers_of_the_job_must_be_numbers(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ValueError, match=r"RANK|WORLD_SIZE|world_size"):
        create_store("127.0.0.1", free_port(), timeout=1)


def test_create_store_waits_for_a_server_that_others_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConnectionError):
        create_store("127.0.0.1", free_port(), timeout=0.2)


def test_a_master_says_how_many_workers_came() -> None:
    with pytest.raises(TimeoutError, match="1 of 3 workers"):
        TorchTCPStore("127.0.0.1", 0, 3, True, timeout=0.2)
    with pytest.raises(ValueError, match="world_size"):
        TorchTCPStore("127.0.0.1", 0, 0, True)


def test_an_etcd_that_is_not_there_is_told() -> None:
    with pytest.raises((ConnectionError, TimeoutError, tensorbus.UnsupportedError)):
        EtcdStore("127.0.0.1", free_port(), timeout=0.3)


def test_a_folder_that_is_not_there_cannot_hold_a_journal(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"absent.*No such file"):
        StoreServer("127.0.0.1", 0, journal=str(tmp_path / "absent" / "journal"))
