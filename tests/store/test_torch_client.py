"""torch's own TCPStore client, unmodified, against our server.

Whatever both servers must do alike runs against torch's own as well, so that the tests say what
torch's client expects and not what we believe.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from tensorbus import kvstore
from tensorbus.kvstore import StoreServer
from torch_servers import torch_server

MIB = 1 << 20


@pytest.fixture
def our_port() -> Iterator[int]:
    with StoreServer(port=0) as server:
        yield server.port


@pytest.fixture(params=["ours", "torch"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "ours":
        yield request.getfixturevalue("our_port")
        return
    with torch_server(libuv=True) as torch_port:
        yield torch_port


def connect(port: int, seconds: float = 20.0) -> dist.TCPStore:
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=False,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
    )


def milliseconds(count: int) -> timedelta:
    return timedelta(milliseconds=count)


# --- every method -----------------------------------------------------------------------------


@pytest.mark.proves("K1", "K2", "K4")
def test_set_and_get(port: int) -> None:
    writer, reader = connect(port), connect(port)
    writer.set("key", "value")
    assert reader.get("key") == b"value"
    writer.set("key", "")
    assert reader.get("key") == b""
    writer.set("key", b"zero\0inside".decode())
    assert reader.get("key") == b"zero\0inside"


def test_add_stores_a_decimal_number(port: int) -> None:
    store = connect(port)
    assert store.add("counter", 5) == 5
    assert store.add("counter", -7) == -2
    assert store.get("counter") == b"-2"
    store.set("counter", "40")
    assert store.add("counter", 2) == 42


def test_compare_set(port: int) -> None:
    store = connect(port)
    assert store.compare_set("key", "expected", "desired") == b"expected"
    assert not store.check(["key"])
    assert store.compare_set("key", "", "first") == b"first"
    assert store.compare_set("key", "wrong", "second") == b"first"
    assert store.compare_set("key", "first", "second") == b"second"
    assert store.get("key") == b"second"


def test_check_asks_for_all_keys(port: int) -> None:
    store = connect(port)
    store.set("a", "")
    assert store.check(["a"])
    assert not store.check(["a", "b"])
    store.set("b", "1")
    assert store.check(["a", "b"])


@pytest.mark.proves("K3")
def test_delete_key(port: int) -> None:
    store = connect(port)
    store.set("key", "value")
    assert store.delete_key("key")
    assert not store.delete_key("key")
    assert not store.check(["key"])


def test_num_keys_and_list_keys(port: int) -> None:
    store = connect(port)
    before, listed = store.num_keys(), set(store.list_keys())
    store.set("a/1", "x")
    store.set("a/2", "x")
    assert store.num_keys() == before + 2
    assert set(store.list_keys()) - listed == {"a/1", "a/2"}


def test_append(port: int) -> None:
    store = connect(port)
    store.append("log", "one")
    store.append("log", ",two")
    assert store.get("log") == b"one,two"


def test_multi_set_and_multi_get(port: int) -> None:
    store = connect(port)
    store.multi_set(["a", "b", "c"], ["1", "", "3"])
    assert store.multi_get(["c", "a", "b"]) == [b"3", b"1", b""]


def test_queues(port: int) -> None:
    store = connect(port, 0.05)
    assert store.queue_len("q") == 0
    for value in ("1", "2"):
        store.queue_push("q", value)
    assert store.queue_len("q") == 2
    assert store.check(["q"])
    assert [store.queue_pop("q"), store.queue_pop("q")] == [b"1", b"2"]
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("q", False)
    with pytest.raises(dist.DistStoreError):
        store.queue_pop("q")
    assert not store.check(["q"])


def test_queue_pops_wait_for_pushes(port: int) -> None:
    clients = [connect(port) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        pops = [pool.submit(client.queue_pop, "q") for client in clients]
        pusher = connect(port)
        for i in range(4):
            pusher.queue_push("q", str(i))
        assert sorted(pop.result() for pop in pops) == [b"0", b"1", b"2", b"3"]


def test_extended_api_clone_and_timeout(port: int) -> None:
    store = connect(port)
    assert store.has_extended_api()
    clone = store.clone()
    store.set("key", "value")
    assert clone.get("key") == b"value"
    store.set_timeout(milliseconds(30))
    assert store.timeout == milliseconds(30)
    with pytest.raises(dist.DistStoreError, match=r"(?i)time"):
        store.get("absent")
    assert clone.get("key") == b"value"


def test_barrier(port: int) -> None:
    clients = [connect(port) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda client: client.barrier("b", 4), clients))
    with pytest.raises(dist.DistStoreError):
        clients[0].barrier("lonely", 2, milliseconds(30))


def test_prefix_stores_nest(port: int) -> None:
    store = connect(port)
    inner = dist.PrefixStore("inner", dist.PrefixStore("outer", store))
    inner.set("key", "value")
    assert store.get("outer/inner/key") == b"value"
    assert inner.add("n", 3) == 3
    assert inner.multi_get(["key", "n"]) == [b"value", b"3"]
    assert inner.delete_key("key")
    assert not inner.check(["key"])


# --- waiting ----------------------------------------------------------------------------------


def test_several_clients_wait_at_once(port: int) -> None:
    clients = [connect(port) for _ in range(8)]
    setter = connect(port)
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(client.wait, ["a", "b"]) for client in clients]
        gets = pool.submit(connect(port).get, "a")
        setter.set("a", "1")
        setter.set("b", "2")
        for wait in waits:
            wait.result()
        assert gets.result() == b"1"


@pytest.mark.proves("K8")
def test_a_timed_out_wait_leaves_the_connection_usable(port: int) -> None:
    store = connect(port)
    for _ in range(3):
        with pytest.raises(dist.DistStoreError):
            store.wait(["absent"], milliseconds(20))
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_wakes_that_cross_the_timeout_do_not_disturb_the_replies(port: int) -> None:
    waiter, setter = connect(port), connect(port)
    outcomes = set()
    with ThreadPoolExecutor(1) as pool:
        for i in range(100):
            setting = pool.submit(setter.set, f"key{i}", "value")
            try:
                waiter.wait([f"key{i}"], milliseconds(1))
                outcomes.add("woken")
            except dist.DistStoreError:
                outcomes.add("timed out")
            assert waiter.add("counter", 1) == i + 1
            setting.result()
    assert "woken" in outcomes


# --- sizes ------------------------------------------------------------------------------------


def test_the_largest_value_and_key(port: int) -> None:
    store = connect(port)
    value = "v" * (8 * MIB)
    store.set("large", value)
    assert store.get("large") == value.encode()
    key = "k" * (8 * 1024 - 1)  # torch's client adds a "/"
    store.set(key, "1")
    assert store.get(key) == b"1"


@pytest.mark.proves("K7")
@pytest.mark.parametrize(
    ("key", "value"),
    [("key", "v" * (8 * MIB + 1)), ("k" * (8 * 1024), "value")],
    ids=["value", "key"],
)
def test_what_is_too_long_costs_its_connection_only(our_port: int, key: str, value: str) -> None:
    bystander, offender = connect(our_port), connect(our_port)
    bystander.set("before", "1")

    def offend() -> None:
        for _ in range(2):  # torch's client hears of a failed set in its next call
            offender.set(key, value)
            offender.check(["before"])

    with pytest.raises(dist.DistError):
        offend()
    assert bystander.get("before") == b"1"
    assert connect(our_port).get("before") == b"1"
    assert "key" not in bystander.list_keys()


# --- what torch's server does wrong -----------------------------------------------------------


def test_a_queue_push_releases_nobody_who_waits_for_more(our_port: int) -> None:
    waiter, pusher = connect(our_port), connect(our_port)
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(waiter.wait, ["queue", "absent"], milliseconds(200))
        while not wait.done():
            pusher.queue_push("queue", "x")
            pusher.queue_len("queue")
        with pytest.raises(dist.DistStoreError):
            wait.result()


def test_a_failed_compare_set_releases_nobody(our_port: int) -> None:
    waiter, other = connect(our_port), connect(our_port)
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(waiter.wait, ["absent"], milliseconds(200))
        while not wait.done():
            other.compare_set("absent", "expected", "desired")
        with pytest.raises(dist.DistStoreError):
            wait.result()


def test_a_barrier_can_be_passed_again(our_port: int) -> None:
    clients = [connect(our_port) for _ in range(3)]
    arrivals = connect(our_port)

    def rounds(client: dist.TCPStore) -> None:
        for i in range(1, 11):
            arrivals_of_round = client.add(f"round{i}", 1)
            assert arrivals_of_round <= 3
            client.barrier("b", 3)
            assert client.add(f"round{i}", 0) == 3

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(rounds, clients))
    with pytest.raises(dist.DistStoreError):
        arrivals.barrier("b", 3, milliseconds(30))


@pytest.mark.proves("K1")
def test_multi_set_is_seen_as_a_whole(our_port: int) -> None:
    writer, reader = connect(our_port), connect(our_port)
    keys = [f"key{i}" for i in range(64)]
    size = 4096  # so that a request takes several packets

    def write(digit: int) -> None:
        writer.multi_set(keys, [str(digit % 10) * size] * len(keys))

    write(0)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [write(i) for i in range(1, 101)])
        while not writing.done():
            assert len(set(reader.multi_get(keys))) == 1
        writing.result()


def test_listens_only_where_told(our_port: int) -> None:
    with socket.socket() as elsewhere, pytest.raises(ConnectionRefusedError):
        elsewhere.connect(("127.0.0.2", our_port))
    with (
        socket.socket(socket.AF_INET6) as elsewhere,
        pytest.raises((ConnectionRefusedError, OSError)),
    ):
        elsewhere.connect(("::1", our_port))


def test_asks_no_name_service_about_its_clients(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-e", "trace=openat,connect", "-o", str(trace)]
    program = Path(sys.executable).with_name("tensorbus")
    process = subprocess.Popen(
        [*strace, str(program), "store", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        for i in range(3):
            connect(port).set(f"key{i}", "value")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    calls = trace.read_text()
    assert "openat" in calls
    for file in ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "nscd"):
        assert file not in calls


# --- a whole job ------------------------------------------------------------------------------


def test_a_gloo_group_of_four_processes_meets_and_reduces(our_port: int) -> None:
    script = Path(__file__).with_name("gloo_group.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(our_port)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=45)
        assert process.returncode == 0, errors
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_queues_are_no_changes_of_keys(store_server: StoreServer, unique: str) -> None:
    queue = connect(store_server.port)
    ours = kvstore.connect(store_server.url, namespace=unique)
    with ours as store, store.watch() as watch:
        queue.queue_push(f"{unique}/tensorbus/queue", "element")
        queue.queue_pop(f"{unique}/tensorbus/queue")
        store.set("after", "")
        assert watch.next(10).key == "after"
