"""Watches and leases, on every backend that has them."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorbus
from backends import ALL, Backend, Servers
from processes import Start, eventually
from tensorbus.kvstore import CoreStore, StoreEvent, Watch

CAPABLE = [p for p in ALL if not str(p).startswith("tcpstore")]


@pytest.fixture(params=CAPABLE)
def backend(request: pytest.FixtureRequest, servers: Servers, unique: str) -> Iterator[Backend]:
    backend = Backend(request.param, servers.url(request.param, unique), unique)
    yield backend
    backend.close()


def shortest_ttl(backend: Backend) -> float:
    # etcd counts leases in whole seconds.
    return 1.0 if backend.name == "etcd" else 0.3


def brief(event: StoreEvent) -> tuple[str, str, bytes | None]:
    return event.kind, event.key, event.value


def gone(store: CoreStore, key: str) -> Callable[[], bool]:
    return lambda: not store.exists(key)


# --- watches ----------------------------------------------------------------------------------


def test_a_watch_tells_every_change_in_order(backend: Backend) -> None:
    watcher, writer = backend.connect(), backend.connect()
    writer.set("w/before", "x")
    with watcher.watch("w/") as watch:
        writer.set("w/a", "1")
        writer.set("other", "x")
        writer.set("w/a", b"2\0")
        writer.delete("w/a")
        writer.delete("w/absent")
        writer.add("w/n", 5)
        writer.compare_and_set("w/n", "5", "6")
        writer.compare_and_set("w/n", "5", "7")
        events = [watch.next(10) for _ in range(5)]
        assert [brief(event) for event in events] == [
            ("put", "w/a", b"1"),
            ("put", "w/a", b"2\0"),
            ("delete", "w/a", None),
            ("put", "w/n", b"5"),
            ("put", "w/n", b"6"),
        ]
        revisions = [event.revision for event in events]
        assert revisions == sorted(set(revisions))
        with pytest.raises(TimeoutError, match="w/"):
            watch.next(0.05)
        # The watch goes on.
        writer.set("w/z", "")
        assert brief(watch.next(10)) == ("put", "w/z", b"")


def test_current_begins_with_what_is_there(store: CoreStore) -> None:
    store.multi_set({"w/b": "2", "w/a": "1", "x": "no"})
    with store.watch("w/", current=True) as watch:
        assert [brief(watch.next(10)) for _ in range(2)] == [
            ("put", "w/a", b"1"),
            ("put", "w/b", b"2"),
        ]
        store.set("w/c", "3")
        assert brief(watch.next(10)) == ("put", "w/c", b"3")


def test_a_multi_set_is_one_revision(store: CoreStore) -> None:
    with store.watch() as watch:
        store.multi_set({"a": "1", "b": "2", "c": "3"})
        events = [watch.next(10) for _ in range(3)]
    assert {event.key for event in events} == {"a", "b", "c"}
    assert len({event.revision for event in events}) == 1


def test_a_watch_can_be_closed_from_another_thread(store: CoreStore) -> None:
    watch = store.watch()
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(watch.next)
        time.sleep(0.1)
        watch.close()
        with pytest.raises(tensorbus.CancelledError):
            blocked.result(5)
    watch.close()
    store.set("key", "the store lives on")


def test_iteration_ends_when_the_watch_is_closed(backend: Backend) -> None:
    watcher, writer = backend.connect(), backend.connect()
    watch = watcher.watch()
    seen: list[str] = []

    def iterate() -> None:
        seen.extend(event.key for event in watch)

    with ThreadPoolExecutor(1) as pool:
        iterating = pool.submit(iterate)
        for i in range(20):
            writer.set(f"{i:02}", "")
        eventually(lambda: len(seen) == 20, "all events")
        watch.close()
        iterating.result(5)
    assert seen == [f"{i:02}" for i in range(20)]


def test_closing_the_store_ends_its_watches(backend: Backend) -> None:
    store = backend.connect()
    watch = store.watch()
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(watch.next, 20)
        time.sleep(0.1)
        store.close()
        with pytest.raises(tensorbus.CancelledError):
            blocked.result(5)


def test_a_watch_is_an_asynchronous_iterator(backend: Backend) -> None:
    watcher, writer = backend.connect(), backend.connect()

    async def scene() -> list[str]:
        seen = []
        with watcher.watch("k") as watch:
            await asyncio.to_thread(writer.multi_set, {f"k{i}": "" for i in range(5)})
            async for event in watch:
                seen.append(event.key)
                if len(seen) == 5:
                    break
        return seen

    assert sorted(asyncio.run(scene())) == [f"k{i}" for i in range(5)]


def test_no_event_is_lost_when_a_task_is_cancelled(backend: Backend) -> None:
    watcher, writer = backend.connect(), backend.connect()
    count = 60

    async def scene(watch: Watch) -> list[str]:
        seen: list[str] = []
        while len(seen) < count:
            try:
                # Cancelled over and over, also at the moment when an event comes.
                event = await asyncio.wait_for(anext(watch), 0.002)
            except TimeoutError:
                continue
            seen.append(event.key)
        return seen

    def write() -> None:
        for i in range(count):
            writer.set(f"{i:03}", "")
            time.sleep(0.001)

    with watcher.watch() as watch:
        thread = threading.Thread(target=write)
        thread.start()
        try:
            seen = asyncio.run(asyncio.wait_for(scene(watch), 30))
        finally:
            thread.join()
    assert seen == [f"{i:03}" for i in range(count)]


def test_a_slow_watcher_misses_nothing(backend: Backend) -> None:
    watcher, writer = backend.connect(), backend.connect()
    with watcher.watch() as watch:
        for i in range(300):
            writer.set(f"{i:03}", bytes(2000))
        assert [watch.next(10).key for _ in range(300)] == [f"{i:03}" for i in range(300)]


# --- leases -----------------------------------------------------------------------------------


@pytest.mark.proves("K6")
def test_keys_vanish_when_a_lease_lapses(backend: Backend) -> None:
    holder, other = backend.connect(), backend.connect()
    ttl = shortest_ttl(backend)
    lease = holder.lease(ttl, keep_alive=False)
    assert lease.ttl == pytest.approx(ttl)
    with other.watch("l/") as watch:
        start = time.monotonic()
        holder.multi_set({"l/a": "1", "l/b": "2"}, lease=lease)
        holder.set("stays", "x")
        assert other.get("l/a") == b"1"
        events = [brief(watch.next(20)) for _ in range(4)]
        assert time.monotonic() - start >= ttl * 0.9
    assert sorted(events[2:]) == [("delete", "l/a", None), ("delete", "l/b", None)]
    assert other.get("stays") == b"x"
    with pytest.raises(RuntimeError, match="lease"):
        holder.set("l/c", "too late", lease=lease)
    assert not other.exists("l/c")
    with pytest.raises(RuntimeError, match="lapsed"):
        lease.refresh()
    assert not lease.alive


@pytest.mark.proves("K6")
def test_a_lease_is_kept_alive(backend: Backend) -> None:
    holder, other = backend.connect(), backend.connect()
    ttl = shortest_ttl(backend)
    lease = holder.lease(ttl)
    holder.set("key", "x", lease=lease)
    with other.watch() as watch, pytest.raises(TimeoutError):
        watch.next(2.5 * ttl)
    assert other.exists("key")
    assert lease.alive


def test_refresh_counts_the_time_anew(backend: Backend) -> None:
    holder = backend.connect()
    ttl = shortest_ttl(backend)
    lease = holder.lease(ttl, keep_alive=False)
    holder.set("key", "x", lease=lease)
    end = time.monotonic() + 2 * ttl
    while time.monotonic() < end:
        lease.refresh()
        time.sleep(ttl / 4)
    assert holder.exists("key")


@pytest.mark.proves("K6")
def test_revoke_removes_only_its_own_keys_at_once(backend: Backend) -> None:
    holder, other = backend.connect(), backend.connect()
    first, second = holder.lease(30), holder.lease(30)
    holder.set("a", "1", lease=first)
    holder.set("b", "1", lease=second)
    holder.set("c", "1", lease=first)
    holder.set("c", "2")  # without a lease it belongs to nobody
    holder.set("d", "1", lease=first)
    holder.set("d", "2", lease=second)
    first.revoke()
    assert other.list_keys() == ["b", "c", "d"]
    assert not first.alive
    assert second.alive
    with pytest.raises(RuntimeError):
        holder.set("e", "1", lease=first)


def test_a_lease_is_a_context_manager(backend: Backend) -> None:
    store = backend.connect()
    with store.lease(30) as lease:
        store.set("key", "x", lease=lease)
        assert store.exists("key")
    assert not store.exists("key")


@pytest.mark.proves("K6")
def test_cleanup_removes_only_the_leased_keys_of_this_client(backend: Backend) -> None:
    mine, other = backend.connect(), backend.connect()
    other.set("other/leased", "x", lease=other.lease(30))
    mine.set("mine/leased", "x", lease=mine.lease(30))
    mine.set("mine/plain", "x")
    mine.close(cleanup=True)
    assert other.list_keys() == ["mine/plain", "other/leased"]


@pytest.mark.proves("K6")
def test_without_cleanup_leased_keys_live_until_they_lapse(backend: Backend) -> None:
    mine, other = backend.connect(), backend.connect()
    ttl = max(shortest_ttl(backend), 0.6)
    mine.set("key", "x", lease=mine.lease(ttl))
    mine.close(cleanup=False)
    assert other.exists("key")
    eventually(gone(other, "key"), "the lease lapses", 10 * ttl)


def test_a_lease_of_another_store_is_refused(backend: Backend) -> None:
    mine, other = backend.connect(), backend.connect()
    with pytest.raises(ValueError, match="another store"):
        mine.set("key", "x", lease=other.lease(30))
    assert not mine.exists("key")


@pytest.mark.parametrize("ttl", [0, -1, 0.01, float("nan"), float("inf"), 1e9])
def test_a_lease_lives_for_a_sensible_time(backend: Backend, ttl: float) -> None:
    with pytest.raises(ValueError, match="lease"):
        backend.connect().lease(ttl)


HOLDER = """
import sys
from tensorbus.kvstore import connect
store = connect(sys.argv[1], timeout=20, namespace=sys.argv[2], component="test")
store.set("alive", "x", lease=store.lease(float(sys.argv[3])))
print("holding")
store.wait_for_key("never")
"""


@pytest.mark.proves("K6")
def test_keys_of_a_killed_holder_vanish(backend: Backend, start_python: Start) -> None:
    if backend.name == "memory":
        pytest.skip("a memory store ends with its process")
    store = backend.connect()
    ttl = max(shortest_ttl(backend), 0.6)
    child = start_python(HOLDER, backend.url, backend.namespace, ttl)
    assert child.line() == "holding"
    time.sleep(1.5 * ttl)
    assert store.exists("alive")
    with store.watch("alive") as watch:
        child.kill()
        assert brief(watch.next(20 * ttl)) == ("delete", "alive", None)
