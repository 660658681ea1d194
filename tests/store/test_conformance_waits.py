"""Waits and barriers on every backend: when they end, what they say, and who can end them."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase

import pytest
import tensorbus
from backends import Backend
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from processes import Start
from tensorbus.kvstore import CoreStore

SOON = 0.15  # long enough to be blocked by then


def candidates(backend: Backend, *keys: str) -> list[str] | None:
    """A hint for most, necessary for torch's protocol."""
    return list(keys) if backend.needs_candidates else None


def still_blocked(future: Future[object]) -> bool:
    time.sleep(SOON)
    return not future.done()


@pytest.mark.proves("K5")
def test_a_wait_for_a_key_ends_with_its_value(backend: Backend) -> None:
    waiter, setter = backend.connect(), backend.connect()
    setter.set("there", b"\0now")
    assert waiter.wait_for_key("there", timeout=10) == b"\0now"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_for_key, "key", 10)
        assert still_blocked(waiting)
        setter.set("key", "")
        assert waiting.result(10) == b""


@pytest.mark.proves("K5")
def test_a_wait_for_a_value_ends_at_that_value(backend: Backend) -> None:
    waiter, setter = backend.connect(), backend.connect()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_for_value, "key", b"go", 10)
        setter.set("key", "wait")
        assert still_blocked(waiting)
        setter.set("key", "go")
        assert waiting.result(10) == b"go"


@pytest.mark.proves("K5")
def test_keys_come_sorted_without_prefix_and_cut(backend: Backend, store: CoreStore) -> None:
    names = [f"rank/{i}" for i in range(12)]
    store.multi_set(dict.fromkeys(names, "1"))
    hint = candidates(backend, *names)
    assert store.wait_for_keys("rank/*", 12, timeout=5, candidate_keys=hint) == sorted(names)
    assert store.wait_for_keys("rank/*", 3, timeout=5, candidate_keys=hint) == sorted(names)[:3]
    assert store.wait_for_keys("rank/*", 0, timeout=5, candidate_keys=hint) == []
    only = store.wait_for_keys("rank/1?", 2, None, timeout=5, candidate_keys=hint)
    assert only == ["rank/10", "rank/11"]


@pytest.mark.proves("K5")
def test_a_wait_for_keys_counts_only_the_value(backend: Backend) -> None:
    waiter, setter = backend.connect(), backend.connect()
    names = [f"w/{i}" for i in range(4)]
    hint = candidates(backend, *names)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_for_keys, "w/*", 3, "1", 10, hint)
        setter.multi_set({"w/0": "1", "w/1": "0", "w/2": "1"})
        assert still_blocked(waiting)
        setter.set("w/3", "1")
        assert waiting.result(10) == ["w/0", "w/2", "w/3"]


@pytest.mark.proves("K5")
def test_candidates_are_needed_only_where_the_server_cannot_search(
    backend: Backend, store: CoreStore
) -> None:
    store.set("a/1", "1")
    if backend.needs_candidates:
        with pytest.raises(ValueError, match="candidate"):
            store.wait_for_keys("a/*", 1, timeout=5)
    else:
        assert store.wait_for_keys("a/*", 1, timeout=5) == ["a/1"]
        # A hint that does not name the key hides nothing.
        assert store.wait_for_keys("a/*", 1, timeout=5, candidate_keys=["b"]) == ["a/1"]


@pytest.mark.proves("K5")
def test_the_condition_must_hold_at_one_moment(backend: Backend) -> None:
    if backend.needs_candidates:
        pytest.skip("without the server's help the keys are read one after the other")
    waiter, setter = backend.connect(), backend.connect()
    setter.set("a", "1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_for_keys, "[ab]", 2, "1", 10)
        assert still_blocked(waiting)
        # The token moves back and forth: both have had it, never both at once.
        for _ in range(50):
            setter.multi_set({"a": "0", "b": "1"})
            setter.multi_set({"a": "1", "b": "0"})
        assert still_blocked(waiting)
        setter.set("b", "1")
        assert waiting.result(10) == ["a", "b"]


PATTERNS = st.text("ab/*?[]!-^é\\.", max_size=8)
NAMES = st.lists(st.text("ab/-]![^é\\.", min_size=1, max_size=6), max_size=6, unique=True)


@pytest.mark.proves("K5")
def test_patterns_match_as_fnmatch_does(backend: Backend) -> None:
    store = backend.connect()
    number = iter(range(1 << 30))

    @settings(
        max_examples=30 if backend.name == "etcd" else 120,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(pattern=PATTERNS, names=NAMES)
    @example(pattern="*", names=["a/b", "a"])
    @example(pattern="?", names=["é", "a"])
    @example(pattern="[é-é]*", names=["é/", "a"])
    @example(pattern="[!a]", names=["é", "a", "b"])
    @example(pattern="[]-a]", names=["]", "^", "a", "b"])
    @example(pattern="[b-a]", names=["a", "b"])
    @example(pattern="[!b-a]", names=["a", "b"])
    @example(pattern="[a-", names=["[a-", "a"])
    @example(pattern="[--a]", names=["-", "a", "/"])
    def check(pattern: str, names: list[str]) -> None:
        component = f"pattern-{next(number)}"
        store.multi_set(dict.fromkeys(names, ""), component=component)
        expected = sorted((n for n in names if fnmatchcase(n, pattern)), key=str.encode)
        hint = [*names, "no such key"] if backend.needs_candidates else None
        found = store.wait_for_keys(
            pattern, len(expected), None, 10, candidate_keys=hint, component=component
        )
        assert found == expected
        with pytest.raises((TimeoutError, ValueError)):
            store.wait_for_keys(
                pattern, len(expected) + 1, None, 0.0, candidate_keys=hint, component=component
            )

    check()


@pytest.mark.proves("K5")
def test_a_pattern_stays_in_its_namespace(backend: Backend) -> None:
    """Whatever characters the namespace and the component have."""
    store = backend.connect(component="run[1]*")
    neighbour = backend.connect(component="run1xx")
    neighbour.set("a", "1")
    store.set("b", "1")
    hint = candidates(backend, "a", "b")
    assert store.wait_for_keys("*", 1, timeout=5, candidate_keys=hint) == ["b"]


@pytest.mark.proves("K5", "K8")
def test_a_timeout_names_what_is_missing_and_is_never_early(
    backend: Backend, store: CoreStore
) -> None:
    store.multi_set({"some/1": "1", "some/2": "0"})
    hint = candidates(backend, "some/1", "some/2", "some/3")
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: store.wait_for_key("lost", 0.1), "lost"),
        (lambda: store.wait_for_value("some/2", "9", 0.1), "some/2"),
        (lambda: store.wait_for_keys("some/*", 3, "1", 0.1, hint), "1 of 3"),
        (lambda: store.barrier("gate", 3, 0.1, member=1), "rank 0, 2"),
    ]
    for call, missing in calls:
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=missing):
            call()
        assert 0.1 <= time.monotonic() - start < 2
    with pytest.raises(TimeoutError):
        store.wait_for_key("lost", 0)
    assert store.get("some/1") == b"1"


@pytest.mark.proves("K5")
def test_many_waits_share_one_client(backend: Backend) -> None:
    count = 12
    waiter, setter = backend.connect(), backend.connect()
    with ThreadPoolExecutor(count) as pool:
        waits = [pool.submit(waiter.wait_for_key, f"k/{i}", 20) for i in range(count)]
        for i in reversed(range(count)):
            setter.set(f"k/{i}", str(i))
        assert [wait.result(20) for wait in waits] == [str(i).encode() for i in range(count)]


def test_close_ends_blocked_calls(backend: Backend) -> None:
    store = backend.connect()
    with ThreadPoolExecutor(3) as pool:
        blocked = [
            pool.submit(store.wait_for_key, "never", 30),
            pool.submit(store.wait_for_value, "never", "x", 30),
            pool.submit(store.barrier, "never", 2, 30),
        ]
        assert all(still_blocked(call) for call in blocked)
        store.close()
        for call in blocked:
            with pytest.raises(tensorbus.CancelledError):
                call.result(5)


def test_waits_release_the_interpreter(backend: Backend) -> None:
    store = backend.connect()
    ticks = 0
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.wait_for_key, "never", 0.3)
        while not waiting.done():
            ticks += 1
            time.sleep(0.001)
        with pytest.raises(TimeoutError):
            waiting.result()
    # A wait that held the interpreter would let this thread run once or twice.
    assert ticks > 30


INTERRUPTED = """
import os, signal, sys, threading, time
from tensorbus.kvstore import connect
store = connect(sys.argv[1], timeout=20, namespace=sys.argv[2])
calls = {
    "wait_for_key": lambda: store.wait_for_key("never", 30),
    "wait_for_value": lambda: store.wait_for_value("never", "x", 30),
    "wait_for_keys": lambda: store.wait_for_keys("n*", 1, "1", 30, ["never"]),
    "barrier": lambda: store.barrier("never", 2, 30),
}
if store.capabilities.watches:
    watch = store.watch("never")
    calls["watch"] = lambda: watch.next(30)
    calls["iteration"] = lambda: next(watch)
for name, call in calls.items():
    sent = []
    def press():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(0.1, press)
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        print(name, time.monotonic() - sent[0])
    timer.join()
store.set("key", "usable")
assert store.get("key") == b"usable"
store.close()
print("done")
"""


@pytest.mark.proves("K8")
def test_ctrl_c_interrupts_every_wait(backend: Backend, start_python: Start) -> None:
    child = start_python(INTERRUPTED, backend.url, backend.namespace)
    calls = []
    while (line := child.line()) != "done":
        name, seconds = line.split()
        assert float(seconds) < 1, line
        calls.append(name)
    assert child.wait() == 0, child.errors
    assert {"wait_for_key", "wait_for_value", "wait_for_keys", "barrier"} <= set(calls)
    watches = backend.connect().capabilities.watches
    assert {"watch", "iteration"} <= set(calls) or not watches


FORKED = """
import os, sys
from tensorbus.kvstore import connect
store = connect(sys.argv[1], timeout=20, namespace=sys.argv[2])
store.set("key", "parent")
child = os.fork()
if child == 0:
    code = 1
    try:
        store.get("key")
    except RuntimeError as error:
        code = 0 if "fork" in str(error) else 2
    store.close()
    os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert store.get("key") == b"parent"
store.close()
"""


def test_use_after_a_fork_is_a_clear_error(backend: Backend, start_python: Start) -> None:
    process = start_python(FORKED, backend.url, backend.namespace)
    assert process.line() == "0"
    assert process.wait() == 0, process.errors


LEFT_BLOCKED = """
import sys, threading
from tensorbus.kvstore import connect
store = connect(sys.argv[1], timeout=20, namespace=sys.argv[2])
for i in range(3):
    threading.Thread(target=store.wait_for_key, args=(f"never{i}",), daemon=True).start()
"""


def test_a_process_can_end_while_threads_are_blocked(backend: Backend, start_python: Start) -> None:
    process = start_python(LEFT_BLOCKED, backend.url, backend.namespace)
    assert process.wait(20) == 0, process.errors
    assert process.errors == ""


# --- asyncio ----------------------------------------------------------------------------------


@pytest.mark.proves("K5")
def test_many_coroutines_wait_at_once(backend: Backend) -> None:
    count = 40
    waiter, setter = backend.connect(), backend.connect()

    async def scene() -> list[bytes]:
        tasks = [asyncio.create_task(waiter.wait_for_key_async(f"k/{i}", 20)) for i in range(count)]
        tasks.append(asyncio.create_task(waiter.wait_for_value_async("v", "go", 20)))
        await asyncio.sleep(SOON)
        assert not any(task.done() for task in tasks)
        entries = {f"k/{i}": str(i) for i in range(count)} | {"v": "go"}
        await asyncio.to_thread(setter.multi_set, entries)
        return await asyncio.gather(*tasks)

    assert asyncio.run(scene()) == [str(i).encode() for i in range(count)] + [b"go"]


@pytest.mark.proves("K5")
def test_coroutines_get_results_and_timeouts(backend: Backend, store: CoreStore) -> None:
    store.multi_set({"a": "1", "b": "1"})
    hint = candidates(backend, "a", "b")

    async def scene() -> None:
        assert await store.wait_for_keys_async("?", 2, "1", 5, hint) == ["a", "b"]
        with pytest.raises(TimeoutError, match="never"):
            await store.wait_for_key_async("never", 0.05)
        await asyncio.gather(*(store.barrier_async("gate", 3, 10) for _ in range(3)))

    asyncio.run(scene())


def test_cancelling_a_task_cancels_the_wait(backend: Backend) -> None:
    store = backend.connect()

    def waiting_threads() -> int:
        return sum(thread.name == "tensorbus wait" for thread in threading.enumerate())

    async def scene() -> None:
        task = asyncio.create_task(store.barrier_async("gate", 2, 30, member=0))
        await asyncio.sleep(SOON)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        end = asyncio.get_running_loop().time() + 5
        while waiting_threads() and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        assert waiting_threads() == 0
        # Its place before the barrier is free again.
        with pytest.raises(TimeoutError, match="1 of 2"):
            await store.barrier_async("gate", 2, 0.1, member=1)

    asyncio.run(scene())


# --- barriers ---------------------------------------------------------------------------------


def meet(stores: list[CoreStore], name: str, times: int) -> None:
    """Nobody passes before all have arrived, each time."""
    arrived = [0] * times
    lock = threading.Lock()

    def member(store: CoreStore) -> None:
        for use in range(times):
            with lock:
                arrived[use] += 1
            store.barrier(name, len(stores), 30)
            assert arrived[use] == len(stores)

    with ThreadPoolExecutor(len(stores)) as pool:
        for future in [pool.submit(member, store) for store in stores]:
            future.result(60)


def test_a_barrier_can_be_used_again_at_once(backend: Backend) -> None:
    meet([backend.connect() for _ in range(3)], "gate", 5 if backend.name == "etcd" else 20)


@pytest.mark.timeout(120)
def test_one_barrier_serves_a_thousand_times(backend: Backend) -> None:
    if backend.name not in ("memory", "tensorbus"):
        pytest.skip("the long version does it on the slower backends")
    meet([backend.connect() for _ in range(2)], "gate", 1000)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_one_barrier_serves_a_thousand_times_everywhere(backend: Backend) -> None:
    meet([backend.connect() for _ in range(4)], "gate", 1000)


def test_a_member_that_gave_up_does_not_count(backend: Backend) -> None:
    first, second = backend.connect(), backend.connect()
    with pytest.raises(TimeoutError, match="1 of 2"):
        first.barrier("gate", 2, 0.1)
    with pytest.raises(TimeoutError, match="1 of 2"):
        second.barrier("gate", 2, 0.1)
    meet([first, second], "gate", 2)


def test_a_barrier_for_one_is_open(store: CoreStore) -> None:
    for _ in range(3):
        store.barrier("gate", 1, 5)


def test_members_must_agree_on_the_size(backend: Backend) -> None:
    first, second = backend.connect(), backend.connect()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.barrier, "gate", 3, 0.6, member="first")
        assert still_blocked(waiting)
        with pytest.raises(ValueError, match="for 2"):
            second.barrier("gate", 2, 5)
        with pytest.raises(TimeoutError):
            waiting.result(10)
