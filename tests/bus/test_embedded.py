"""An agent on a thread of its worker: which store, which namespace, which rank."""

from __future__ import annotations

import contextlib

import pytest
import tensorbus
import torch
import torch.distributed as dist
from buses import together
from processes import eventually
from tensorbus import TensorBusClient
from tensorbus.kvstore import CoreStore, KVStore, StoreServer, TorchTCPStore, connect


def round_trip(a: TensorBusClient, b: TensorBusClient, *names: str) -> None:
    one, other = names or ("a", "b")
    sent, got = {"w": torch.ones(3)}, {"w": torch.zeros(3)}
    sender, receiver = a.link(one, other, 1), b.link(other, one, 1)
    together(
        lambda: sender.send_state_dict("x", sent, timeout=20),
        lambda: receiver.recv_state_dict("x", got, timeout=20),
    )
    assert got["w"].sum() == 3


def test_the_environment_says_store_namespace_and_rank(
    store_server: StoreServer, unique: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TENSORBUS_STORE", store_server.url)
    monkeypatch.setenv("TENSORBUS_NAMESPACE", unique)
    monkeypatch.setenv("AGENT_RANK", "0")
    with (
        TensorBusClient.embedded() as from_environment,
        connect(store_server.url) as store,
        TensorBusClient.embedded(store_server.url, 1, unique) as given,
        TensorBusClient.embedded(store, rank=2) as with_store,
        TensorBusClient.embedded(f"{store_server.url}/other-{unique}", rank=0) as elsewhere,
        connect(store_server.url, namespace=f"other-{unique}") as other,
        TensorBusClient.embedded(other, rank=1) as beside,
    ):
        assert from_environment.agent_rank == 0
        round_trip(from_environment, given)
        round_trip(with_store, given, "c", "d")
        # What a store says itself counts more than the environment.
        round_trip(elsewhere, beside)


@pytest.mark.parametrize(
    ("variables", "arguments", "message"),
    [
        ({}, {"rank": 0}, "TENSORBUS_STORE"),
        ({"AGENT_RANK": "two"}, {"store": "memory://x"}, "AGENT_RANK is 'two'"),
        ({}, {"store": 7, "rank": 0}, "store is a URL or a store of tensorbus.kvstore, not 7"),
    ],
)
def test_what_is_missing_is_named(variables, arguments, message, monkeypatch: pytest.MonkeyPatch):
    for name in ("TENSORBUS_STORE", "TENSORBUS_NAMESPACE", "AGENT_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        TensorBusClient.embedded(**arguments)


@pytest.mark.proves("L3.1")
def test_who_gives_no_rank_gets_a_free_one(
    store_server: StoreServer, unique: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("AGENT_RANK", raising=False)
    monkeypatch.setenv("RANK", "0")  # torchrun's: every job has one
    url = f"{store_server.url}/{unique}"
    with (
        connect(store_server.url, namespace=unique, component="bus") as records,
        TensorBusClient.embedded(url, rank=1001) as given,
    ):
        eventually(lambda: "agent/1001" in records.list_keys(), "the record of the agent")
        with TensorBusClient.embedded(url) as one, TensorBusClient.embedded(url) as other:
            assert [one.agent_rank, other.agent_rank] == [1000, 1002]
            round_trip(one, other)
            round_trip(given, other, "c", "d")
    with TensorBusClient.embedded(url) as later:
        assert later.agent_rank == 1003


@pytest.mark.proves("L3.1")
def test_a_free_rank_stands_nowhere_in_a_mesh(
    store_server: StoreServer, unique: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("AGENT_RANK", raising=False)
    with TensorBusClient.embedded(f"{store_server.url}/{unique}") as client:
        with pytest.raises(ValueError, match=r"ascending order.*give rank="):
            client.init_pair("p", "a", "b", 2, (2,), [tensorbus.Shard(0)], timeout=5)
        with pytest.raises(TimeoutError):  # replicas are alike
            client.init_pair("p", "a", "b", 2, (2,), [tensorbus.Replicate()], timeout=0.2)


@pytest.mark.parametrize("kind", ["tensorbus", "memory", "etcd", "TorchTCPStore"])
def test_every_store_with_leases_and_watches_will_do(
    kind: str, request: pytest.FixtureRequest, store_server: StoreServer, unique: str
):
    def open_store() -> CoreStore:
        if kind == "TorchTCPStore":
            return TorchTCPStore(
                "127.0.0.1", store_server.port, 1, is_master=False, wait_for_workers=False,
                namespace=unique,
            )  # fmt: skip
        if kind == "etcd":
            url = f"etcd://127.0.0.1:{request.getfixturevalue('etcd')}"
        else:
            url = store_server.url if kind == "tensorbus" else f"memory://{unique}"
        return connect(url, namespace=unique)

    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(open_store()) for _ in range(2)]
        clients = [
            stack.enter_context(TensorBusClient.embedded(store, rank))
            for rank, store in enumerate(stores)
        ]
        round_trip(*clients)


class OwnStore(KVStore):
    """Has what every store has, and no more."""

    set = get = exists = delete = set_bytes = get_bytes = close = lambda *_, **__: None
    wait_for_key = wait_for_keys = wait_for_value = lambda *_, **__: None


def test_a_store_without_leases_and_watches_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"needs a store with leases and watches.*OwnStore"):
        TensorBusClient.embedded(OwnStore(), rank=0)  # type: ignore[arg-type]
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with (
        connect(f"tcpstore://127.0.0.1:{server.port}") as torchs,
        pytest.raises(tensorbus.UnsupportedError, match="needs leases and watches"),
    ):
        TensorBusClient.embedded(torchs, rank=0)
