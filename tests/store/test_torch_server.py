"""Our tcpstore:// client against torch's own servers."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import monotonic
from types import FrameType

import pytest
import tensorbus
import torch.distributed as dist
from tensorbus import kvstore
from torch_servers import torch_server

MIB = 1 << 20


@pytest.fixture
def libuv_port() -> Iterator[int]:
    with torch_server(libuv=True) as port:
        yield port


@pytest.fixture(params=["libuv", "legacy"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with torch_server(libuv=request.param == "libuv") as port:
        yield port


def connect(port: int) -> kvstore.KVStore:
    return kvstore.connect(f"tcpstore://127.0.0.1:{port}", timeout=20.0)


def torch_client(port: int) -> dist.TCPStore:
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=False,
        timeout=timedelta(seconds=20),
        wait_for_workers=False,
    )


# --- on both servers --------------------------------------------------------------------------


@pytest.mark.proves("K1", "K2", "K3", "K4")
def test_values_go_and_come_as_they_are(port: int) -> None:
    writer, reader = connect(port), connect(port)
    for value in (b"value", b"", b"zero\0inside", bytes(range(256))):
        writer.set_bytes("key", value)
        assert reader.get_bytes("key") == value
        assert reader.exists("key")
    assert writer.delete("key")
    assert not writer.delete("key")
    assert reader.get("key") is None
    assert not reader.exists("key")


def test_numbers_swaps_and_lists(port: int) -> None:
    store = connect(port)
    assert [store.add("n", 5), store.add("n", -7)] == [5, -2]
    assert store.compare_and_set("k", None, "1") == (True, b"1")
    assert store.compare_and_set("k", None, "1") == (False, b"1")
    assert store.compare_and_set("k", "2", "3") == (False, b"1")
    assert store.compare_and_set("k", "1", "3") == (True, b"3")
    assert store.compare_and_set("absent", "1", "3") == (False, None)
    store.multi_set({"m/1": "a", "m/2": ""})
    assert store.list_keys("m/") == ["m/1", "m/2"]
    values = store.multi_get(["m/2", "absent", "m/1"])
    assert list(values.values() if isinstance(values, dict) else values) == [b"", None, b"a"]


def test_adding_to_a_text_is_refused_and_the_client_lives(port: int) -> None:
    store = connect(port)
    store.set("text", "seven")
    with pytest.raises(ValueError, match="not a whole number"):
        store.add("text", 1)
    assert store.get("text") == b"seven"


@pytest.mark.proves("K5")
def test_waits(port: int) -> None:
    waiter, setter = connect(port), connect(port)
    with ThreadPoolExecutor(4) as pool:
        key = pool.submit(waiter.wait_for_key, "a", 20.0)
        value = pool.submit(waiter.wait_for_value, "b", "right", 20.0)
        ranks = ["rank/0", "rank/1", "rank/2"]
        keys = pool.submit(waiter.wait_for_keys, "rank/*", 3, "1", 20.0, ranks)
        some = pool.submit(waiter.wait_for_keys, "rank/*", 2, "1", 20.0, ranks)
        setter.set("b", "wrong")
        for name in ranks:
            setter.set(name, "1")
        setter.set("a", "here")
        setter.set("b", "right")
        assert key.result() == b"here"
        assert value.result() == b"right"
        assert keys.result() == ranks
        assert len(some.result()) == 2


@pytest.mark.proves("K5", "K8")
def test_timeouts_are_not_early_and_name_what_is_missing(port: int) -> None:
    store = connect(port)
    store.set("rank/0", "1")
    start = monotonic()
    with pytest.raises(TimeoutError, match="absent"):
        store.wait_for_key("absent", 0.05)
    assert monotonic() - start >= 0.05
    with pytest.raises(TimeoutError, match="rank/1"):
        store.wait_for_keys("rank/*", 2, "1", 0.05, ["rank/0", "rank/1"])
    with pytest.raises(ValueError, match="candidate"):
        store.wait_for_keys("rank/*", 1, "1", 0.05)
    store.set("after", "1")
    assert store.get("after") == b"1"


def test_a_barrier_is_passed_again_and_again(port: int) -> None:
    stores = [connect(port) for _ in range(4)]

    def rounds(store: kvstore.KVStore) -> None:
        for i in range(10):
            store.add(f"round{i}", 1)
            store.barrier("b", 4, timeout=20.0)
            assert store.add(f"round{i}", 0) == 4

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rounds, stores))


@pytest.mark.proves("K7")
def test_sizes(port: int) -> None:
    store = connect(port)
    value = b"v" * (8 * MIB)
    store.set_bytes("large", value)
    assert store.get_bytes("large") == value
    with pytest.raises(ValueError, match="too large"):
        store.set_bytes("large", value + b"!")
    with pytest.raises(ValueError, match="too long"):
        store.set("k" * 9000, "")
    assert store.exists("large")


def test_torch_clients_see_the_same_keys(port: int) -> None:
    ours, theirs = connect(port), torch_client(port)
    ours.set("key", "ours")
    assert theirs.get("default/tensorbus/key") == b"ours"
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(ours.wait_for_key, "reply", 20.0)
        theirs.set("default/tensorbus/reply", "theirs")
        assert wait.result() == b"theirs"


# --- once -------------------------------------------------------------------------------------


def test_a_barrier_that_times_out_says_who_is_missing_and_can_be_used(libuv_port: int) -> None:
    stores = [connect(libuv_port) for _ in range(2)]
    with pytest.raises(TimeoutError, match=r"b.*1 of 2 arrived"):
        stores[0].barrier("b", 2, timeout=0.05)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda store: store.barrier("b", 2, timeout=20.0), stores))
    assert stores[0].list_keys("") == []


def test_leases_and_watches_are_refused_at_the_call(libuv_port: int) -> None:
    store = connect(libuv_port)
    with pytest.raises(tensorbus.UnsupportedError, match="tcpstore://"):
        store.lease(1.0)
    with pytest.raises(tensorbus.UnsupportedError, match="tensorbus://"):
        store.watch("")


def test_a_swap_that_fails_wakes_nobody(libuv_port: int) -> None:
    ours, waiter = connect(libuv_port), torch_client(libuv_port)
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(waiter.wait, ["default/tensorbus/absent"], timedelta(milliseconds=100))
        while not wait.done():
            assert ours.compare_and_set("absent", "1", "2") == (False, None)
        with pytest.raises(dist.DistStoreError):
            wait.result()


def test_threads_share_a_client(libuv_port: int) -> None:
    store = connect(libuv_port)

    def work(i: int) -> None:
        for j in range(20):
            store.set(f"{i}/{j}", str(j))
            assert store.get(f"{i}/{j}") == str(j).encode()
            store.add("sum", 1)
        store.wait_for_key(f"{(i + 1) % 8}/19", 20.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert store.add("sum", 0) == 160


@pytest.mark.proves("K9")
def test_the_client_outlives_its_server() -> None:
    with torch_server(libuv=True) as port:
        store = connect(port)
        store.set("key", "old")
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(store.wait_for_key, "late", 20.0)
        with torch_server(libuv=True, port=port):
            assert store.get("key") is None
            store.set("late", "new")
            assert wait.result() == b"new"
            assert store.add("n", 1) == 1


def test_a_server_that_never_comes_is_unreachable() -> None:
    with torch_server(libuv=True) as port:
        pass
    start = monotonic()
    with pytest.raises(ConnectionError, match=str(port)):
        kvstore.connect(f"tcpstore://127.0.0.1:{port}", timeout=0.1)
    assert monotonic() - start >= 0.1


@pytest.mark.proves("K8")
def test_a_signal_ends_a_wait(libuv_port: int) -> None:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    store = connect(libuv_port)
    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            store.wait_for_key("absent", 20.0)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert not store.exists("absent")


def test_close_ends_a_wait(libuv_port: int) -> None:
    store = connect(libuv_port)
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(store.wait_for_key, "absent", 20.0)
        store.close()
        with pytest.raises(tensorbus.CancelledError):
            wait.result()
