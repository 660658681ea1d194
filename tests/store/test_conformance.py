"""What every backend does alike: values, numbers, lists, limits, names. The waits are next door."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorbus
from backends import Backend
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tensorbus.kvstore import CoreStore, KVStore

MIB = 1 << 20


@pytest.mark.proves("K1", "K2")
def test_a_set_is_seen_by_every_other_client(backend: Backend) -> None:
    writer, readers = backend.connect(), [backend.connect() for _ in range(3)]
    for round_number in range(20):
        writer.set("key", str(round_number))
        assert [reader.get("key") for reader in readers] == [str(round_number).encode()] * 3


@pytest.mark.proves("K2")
def test_get_tells_absent_from_empty(store: CoreStore) -> None:
    assert store.get("key") is None
    assert not store.exists("key")
    store.set("key", "")
    assert store.get("key") == b""
    assert store.exists("key")


@pytest.mark.proves("K1")
@pytest.mark.parametrize(
    "value", ["text", "grüß", b"raw", bytearray(b"array"), memoryview(b"view")]
)
def test_text_and_anything_bytes_like_can_be_set(store: CoreStore, value: str | bytes) -> None:
    store.set("key", value)
    assert store.get("key") == (value.encode() if isinstance(value, str) else bytes(value))


@pytest.mark.proves("K4")
def test_bytes_come_back_as_they_went(store: CoreStore) -> None:
    every_byte = bytes(range(256)) * 3
    store.set_bytes("key", every_byte)
    assert store.get_bytes("key") == every_byte
    store.set_bytes("zeros", b"\0\0")
    assert store.get_bytes("zeros") == b"\0\0"
    assert store.get_bytes("absent") is None


@pytest.mark.proves("K4", "K7")
def test_the_largest_value_fits(store: CoreStore) -> None:
    largest = store.capabilities.max_value_size
    value = b"\0x" * (largest // 2)
    store.set("key", value)
    assert store.get("key") == value
    assert store.wait_for_value("key", value, timeout=20) == value


@pytest.mark.proves("K7")
def test_larger_than_the_limit_is_an_error_and_the_connection_lives(store: CoreStore) -> None:
    too_large = bytes(store.capabilities.max_value_size + 1)
    too_long = "k" * 8192
    store.set("key", "before")
    with pytest.raises(ValueError, match="too large"):
        store.set("key", too_large)
    with pytest.raises(ValueError, match="too large"):
        store.multi_set({"other": "x", "key": too_large})
    with pytest.raises(ValueError, match="too large"):
        store.compare_and_set("key", "before", too_large)
    for call in (store.get, store.exists, store.delete, store.list_keys, store.wait_for_key):
        with pytest.raises(ValueError, match="too long"):
            call(too_long)
    with pytest.raises(ValueError, match="too long"):
        store.set(too_long, "x")
    with pytest.raises(ValueError, match="too long"):
        store.add(too_long, 1)
    assert store.get("key") == b"before"
    assert not store.exists("other")


@pytest.mark.proves("K7")
def test_the_longest_key_works(store: CoreStore) -> None:
    # A full key has 8 KiB, with the "/" that torch's clients put before it.
    longest = "k" * (8191 - len(f"{store.namespace}/{store.component}/"))
    store.set(longest, "x")
    assert store.get(longest) == b"x"
    assert store.list_keys() == [longest]


@pytest.mark.proves("K3")
def test_delete_really_deletes(backend: Backend, store: CoreStore) -> None:
    other = backend.connect()
    assert store.delete("key") is False
    store.set("key", "")
    assert store.delete("key") is True
    assert other.get("key") is None
    assert not other.exists("key")
    assert other.list_keys() == []
    assert other.delete("key") is False


def test_add_counts_from_zero_in_decimal_text(store: CoreStore) -> None:
    assert store.add("n", 5) == 5
    assert store.add("n", -7) == -2
    assert store.get("n") == b"-2"
    store.set("n", "40")
    assert store.add("n", 2) == 42
    assert store.add("n", 0) == 42


def test_add_to_a_text_is_an_error_and_changes_nothing(store: CoreStore) -> None:
    store.set("n", "seven")
    with pytest.raises(ValueError, match="number"):
        store.add("n", 1)
    assert store.get("n") == b"seven"


@pytest.mark.proves("K1")
def test_adds_of_many_threads_all_count(backend: Backend) -> None:
    stores = [backend.connect() for _ in range(4)]
    count = 40 if backend.name == "etcd" else 200
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda i: stores[i % 4].add("n", 1), range(count)))
    assert sorted(sums) == list(range(1, count + 1))


def test_compare_and_set(store: CoreStore) -> None:
    assert store.compare_and_set("key", "x", "y") == (False, None)
    assert not store.exists("key")
    assert store.compare_and_set("key", None, "first") == (True, b"first")
    assert store.compare_and_set("key", None, "second") == (False, b"first")
    assert store.compare_and_set("key", "wrong", "second") == (False, b"first")
    assert store.compare_and_set("key", "first", b"sec\0nd") == (True, b"sec\0nd")
    assert store.get("key") == b"sec\0nd"


def test_compare_and_set_tells_empty_from_absent(backend: Backend, store: CoreStore) -> None:
    assert store.compare_and_set("key", "", "value") == (False, None)
    store.set("key", "")
    if not backend.needs_candidates:
        # torch's COMPARE_SET itself cannot tell them apart; the others can.
        assert store.compare_and_set("key", None, "value") == (False, b"")
    assert store.compare_and_set("key", "", "value") == (True, b"value")


@pytest.mark.proves("K1")
def test_one_of_many_wins_a_compare_and_set(backend: Backend) -> None:
    stores = [backend.connect() for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(
            pool.map(lambda i: stores[i % 4].compare_and_set("key", None, str(i)), range(40))
        )
    winners = [i for i, (swapped, _) in enumerate(outcomes) if swapped]
    assert len(winners) == 1
    assert {value for _, value in outcomes} == {str(winners[0]).encode()}


def test_list_is_sorted_and_by_prefix(store: CoreStore) -> None:
    store.multi_set({"b/2": "", "b/10": "", "a": "", "b": "", "ä": ""})
    assert store.list_keys() == ["a", "b", "b/10", "b/2", "ä"]
    assert store.list_keys("b/") == ["b/10", "b/2"]
    assert store.list_keys("c") == []


def test_multi_get_keeps_the_order_asked_for(store: CoreStore) -> None:
    store.multi_set({"a": "1", "b": b"2\0", "empty": ""})
    assert store.multi_get(["b", "absent", "a", "empty", "b"]) == [b"2\0", None, b"1", b"", b"2\0"]
    assert store.multi_get([]) == []
    store.multi_set({})


@pytest.mark.proves("K1")
def test_a_multi_set_is_seen_whole(backend: Backend) -> None:
    if backend.name == "tcpstore-torch":
        pytest.skip("torch's server does not set many keys at one moment")
    writer, reader = backend.connect(), backend.connect()
    keys = [f"key/{i}" for i in range(16)]
    done = threading.Event()

    def write() -> None:
        for number in range(20 if backend.name == "etcd" else 100):
            writer.multi_set(dict.fromkeys(keys, str(number)))
        done.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not done.is_set() and not writing.done():
            assert len(set(reader.multi_get(keys))) == 1
        writing.result()


def test_components_and_namespaces_keep_apart(backend: Backend, store: CoreStore) -> None:
    other = backend.connect(component="other")
    store.set("key", "mine")
    assert other.get("key") is None
    assert other.get("key", component="test") == b"mine"
    other.set("key", "yours")
    assert store.get("key") == b"mine"
    assert store.get("key", component="other") == b"yours"
    assert store.list_keys(component="other") == ["key"]
    assert store.delete("key", component="other")
    assert not other.exists("key")


@pytest.mark.proves("K6")
def test_close_leaves_keys_without_a_lease(backend: Backend) -> None:
    first, second = backend.connect(), backend.connect()
    first.set("key", "x")
    first.close(cleanup=True)
    assert second.get("key") == b"x"


def test_a_closed_store_says_so(store: CoreStore) -> None:
    store.close()
    store.close()
    with pytest.raises(tensorbus.CancelledError, match="closed"):
        store.get("key")
    with pytest.raises(tensorbus.CancelledError, match="closed"):
        store.wait_for_key("key", timeout=5)


def test_what_a_backend_cannot_do_it_refuses_by_name(backend: Backend, store: CoreStore) -> None:
    capabilities = store.capabilities
    expected = backend.scheme != "tcpstore"
    for able in (capabilities.leases, capabilities.watches, capabilities.server_waits):
        assert able is expected
    if not capabilities.leases:
        with pytest.raises(tensorbus.UnsupportedError, match="tcpstore://"):
            store.lease(5)
    if not capabilities.watches:
        with pytest.raises(tensorbus.UnsupportedError, match="tcpstore://"):
            store.watch()
    store.set("key", "still usable")


def test_a_store_is_a_kvstore_and_a_context_manager(backend: Backend) -> None:
    with backend.connect() as store:
        assert isinstance(store, KVStore)
        assert backend.scheme in repr(store)
        store.set("key", "x")
    with pytest.raises(tensorbus.CancelledError):
        store.get("key")


KEYS = st.sampled_from(["a", "b", "a/b", "a/c", "ü", "a*"])
VALUES = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"0", b"7", b"\0", b"-3"]))


class Model(RuleBasedStateMachine):
    """Any sequence of calls does to the store what it does to a dict."""

    clients: tuple[CoreStore, CoreStore]

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, bytes] = {}
        self.component = uuid.uuid4().hex
        self.turn = 0

    def store(self) -> CoreStore:
        self.turn += 1
        return self.clients[self.turn % 2]

    @rule(key=KEYS, value=VALUES)
    def set(self, key: str, value: bytes) -> None:
        self.store().set(key, value, component=self.component)
        self.model[key] = value

    @rule(values=st.dictionaries(KEYS, VALUES, max_size=4))
    def multi_set(self, values: dict[str, bytes]) -> None:
        self.store().multi_set(values, component=self.component)
        self.model.update(values)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        existed = self.store().delete(key, component=self.component)
        assert existed == (self.model.pop(key, None) is not None)

    @rule(key=KEYS, amount=st.integers(-(2**31), 2**31))
    def add(self, key: str, amount: int) -> None:
        text = self.model.get(key, b"0")
        if text not in (b"0", b"7", b"-3") and not key.startswith("a"):
            return
        try:
            expected = int(text)
            assert str(expected).encode() == text
        except (ValueError, AssertionError):
            return
        assert self.store().add(key, amount, component=self.component) == expected + amount
        self.model[key] = str(expected + amount).encode()

    @rule(key=KEYS, expected=st.none() | VALUES, desired=VALUES, hit=st.booleans())
    def compare_and_set(self, key: str, expected: bytes | None, desired: bytes, hit: bool) -> None:
        before = self.model.get(key)
        if hit:
            expected = before
        if expected is None and before == b"":
            return  # torch's COMPARE_SET cannot tell these apart
        if expected == before:
            self.model[key] = desired
        outcome = self.store().compare_and_set(key, expected, desired, component=self.component)
        assert outcome == (expected == before, self.model.get(key))

    @rule(keys=st.lists(KEYS, max_size=5))
    def multi_get(self, keys: list[str]) -> None:
        values = self.store().multi_get(keys, component=self.component)
        assert values == [self.model.get(key) for key in keys]

    @rule(prefix=st.sampled_from(["", "a", "a/", "ü", "z"]))
    def list_keys(self, prefix: str) -> None:
        expected = sorted((k for k in self.model if k.startswith(prefix)), key=str.encode)
        assert self.store().list_keys(prefix, component=self.component) == expected

    @invariant()
    def all_keys_are_equal(self) -> None:
        for key in ("a", "ü"):
            assert self.store().get(key, component=self.component) == self.model.get(key)


def run_model(backend: Backend, examples: int, steps: int) -> None:
    class Machine(Model):
        clients = (backend.connect(), backend.connect())

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.proves("K1", "K2", "K3")
def test_any_sequence_of_calls_does_what_it_does_to_a_dict(backend: Backend) -> None:
    run_model(backend, examples=5 if backend.name == "etcd" else 15, steps=25)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.proves("K1", "K2", "K3")
def test_any_long_sequence_of_calls_does_what_it_does_to_a_dict(backend: Backend) -> None:
    run_model(backend, examples=60 if backend.name == "etcd" else 500, steps=50)
