"""The server's journal: damaged, cut, somebody else's, in use, compacted."""

import os
import random
import shutil
from pathlib import Path

import pytest
from tensorbus.kvstore import StoreServer, connect

MAGIC = b"tensorbus store journal 1\n"


def contents(journal: Path) -> dict[str, bytes]:
    """What a server that starts from this file holds."""
    with StoreServer("127.0.0.1", 0, journal=str(journal)) as server, connect(server.url) as store:
        keys = store.list_keys()
        return {key: value for key, value in zip(keys, store.multi_get(keys), strict=True) if value}


@pytest.fixture
def history(tmp_path: Path) -> list[tuple[bytes, dict[str, bytes]]]:
    """A journal's bytes, and the state they stand for, after each of many changes."""
    journal = tmp_path / "history"
    states = []
    model: dict[str, bytes] = {}
    rng = random.Random(5)
    with StoreServer("127.0.0.1", 0, journal=str(journal)) as server, connect(server.url) as store:
        states.append((journal.read_bytes(), dict(model)))
        for number in range(40):
            key = f"key{rng.randrange(6)}"
            kind = rng.randrange(3)
            if kind == 0:
                model[key] = rng.randbytes(rng.randrange(1, 60))
                store.set(key, model[key])
            elif kind == 1:
                if store.delete(key):
                    del model[key]
            else:
                model["n"] = str(store.add("n", number + 1)).encode()
            states.append((journal.read_bytes(), dict(model)))
    return states


def test_a_journal_holds_every_acknowledged_change(
    history: list[tuple[bytes, dict[str, bytes]]], tmp_path: Path
) -> None:
    for data, state in history[::8] + history[-1:]:
        journal = tmp_path / "journal"
        journal.write_bytes(data)
        assert contents(journal) == state


def damaged_is_noticed(
    history: list[tuple[bytes, dict[str, bytes]]], tmp_path: Path, times: int
) -> None:
    data, state = history[-1]
    journal = tmp_path / "journal"
    rng = random.Random(11)
    refused = 0
    for _ in range(times):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if damaged == data:
            continue
        journal.write_bytes(damaged)
        with pytest.raises(RuntimeError, match=r"corrupt at byte|is not a journal"):
            contents(journal)
        assert journal.read_bytes() == damaged, "a damaged journal must be left as it is"
        refused += 1
    assert refused > times // 2
    journal.write_bytes(data)
    assert contents(journal) == state


def test_any_flipped_bit_is_noticed(
    history: list[tuple[bytes, dict[str, bytes]]], tmp_path: Path
) -> None:
    damaged_is_noticed(history, tmp_path, 150)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_any_flipped_bit_of_thousands_is_noticed(
    history: list[tuple[bytes, dict[str, bytes]]], tmp_path: Path
) -> None:
    damaged_is_noticed(history, tmp_path, 20_000)


@pytest.mark.proves("K9")
def test_a_tail_that_was_never_acknowledged_is_dropped(
    history: list[tuple[bytes, dict[str, bytes]]], tmp_path: Path
) -> None:
    """Cut anywhere, it holds the last state that was complete by then; and it can be written on."""
    data = history[-1][0]
    journal = tmp_path / "journal"
    rng = random.Random(3)
    for size in [
        len(MAGIC),
        len(MAGIC) + 1,
        *(rng.randrange(len(MAGIC), len(data)) for _ in range(40)),
    ]:
        expected = next(state for whole, state in reversed(history) if len(whole) <= size)
        journal.write_bytes(data[:size])
        assert contents(journal) == expected
        with StoreServer("127.0.0.1", 0, journal=str(journal)) as server, connect(server.url) as on:
            on.set("more", "x")
        assert contents(journal) == expected | {"more": b"x"}


@pytest.mark.parametrize("size", [1, 10, len(MAGIC) - 1])
def test_a_cut_head_is_an_error(
    history: list[tuple[bytes, dict[str, bytes]]], tmp_path: Path, size: int
) -> None:
    journal = tmp_path / "journal"
    for data in (history[-1][0][:size], history[-1][0][size:]):
        journal.write_bytes(data)
        with pytest.raises(RuntimeError, match="not a journal"):
            contents(journal)
        assert journal.read_bytes() == data


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("not a journal\n" * 10)
    with pytest.raises(RuntimeError, match=r"notes\.txt is not a journal"):
        StoreServer("127.0.0.1", 0, journal=str(notes))
    assert notes.read_text() == "not a journal\n" * 10


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_the_file_of_another_user_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(MAGIC)
    os.chown(journal, 12345, -1)
    with pytest.raises(RuntimeError, match="belongs to user 12345"):
        StoreServer("127.0.0.1", 0, journal=str(journal))


def test_only_a_regular_file_is_a_journal(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(MAGIC)
    link = tmp_path / "link"
    link.symlink_to(real)
    with pytest.raises(RuntimeError, match="symbolic link"):
        StoreServer("127.0.0.1", 0, journal=str(link))
    with pytest.raises(RuntimeError, match="directory"):
        StoreServer("127.0.0.1", 0, journal=str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RuntimeError, match="not a regular file"):
        StoreServer("127.0.0.1", 0, journal=str(tmp_path / "pipe"))


def test_a_journal_has_one_server(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with StoreServer("127.0.0.1", 0, journal=str(journal)) as server, connect(server.url) as store:
        with pytest.raises(RuntimeError, match="in use by another server"):
            StoreServer("127.0.0.1", 0, journal=str(journal))
        store.set("key", "x")
        store.set("key", "y")
    assert contents(journal) == {"key": b"y"}
    assert os.stat(journal).st_mode & 0o777 == 0o600


def test_a_failed_start_leaves_neither_port_nor_lock(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text("something else")
    with StoreServer("127.0.0.1", 0) as probe:
        port = probe.port
    with pytest.raises(RuntimeError):
        StoreServer("127.0.0.1", port, journal=str(journal))
    journal.unlink()
    with StoreServer("127.0.0.1", port, journal=str(journal)) as server:
        assert server.port == port


def test_a_journal_does_not_grow_with_restarts(tmp_path: Path) -> None:
    """Each server adds less than what makes it compact, and all of it replaces the same key."""
    journal = tmp_path / "journal"
    for number in range(5):
        with StoreServer("127.0.0.1", 0, journal=str(journal)) as server, connect(server.url) as on:
            for _ in range(10):
                on.set("large", bytes([number]) * (1 << 20))
        assert journal.stat().st_size < 30 << 20, f"after {number + 1} servers"
        # As of a server that was killed while it compacted.
        (tmp_path / "journal.new").write_bytes(MAGIC)
    assert contents(journal) == {"large": bytes([4]) * (1 << 20)}
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.proves("K9")
def test_a_journal_is_compacted_and_loses_nothing(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with StoreServer("127.0.0.1", 0, journal=str(journal)) as server, connect(server.url) as store:
        store.set("leased", "x", lease=store.lease(60))
        store.set("first", "kept")
        sizes = []
        for number in range(40):
            store.set("large", bytes([number]) * (1 << 20))
            sizes.append(journal.stat().st_size)
            store.add("n", 1)
        assert sizes != sorted(sizes), "it never shrank"
        assert max(sizes) < 18 << 20, "40 MiB were written, one is still needed"
        revision = server.stats().revision
        copy = tmp_path / "copy"
        shutil.copy(journal, copy)
        store.close(cleanup=False)
    with StoreServer("127.0.0.1", 0, journal=str(copy)) as server, connect(server.url) as store:
        assert store.list_keys() == ["first", "large", "leased", "n"]
        assert store.get("large") == bytes([39]) * (1 << 20)
        assert store.get("n") == b"40"
        assert store.add("n", 1) == 41
        assert server.stats().revision > revision
    assert not list(tmp_path.glob("*.new"))
