"""A journal on a disk that has no room left: a real one, a small tmpfs that only the test sees."""

import pytest
from processes import MakeDisk, StartServer
from tensorbus.kvstore import connect

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.proves("K9")
def test_a_full_disk_stops_the_server_and_loses_nothing_acknowledged(
    make_disk: MakeDisk, start_server: StartServer
) -> None:
    disk = make_disk(256 * KIB)
    (disk / "something else").write_bytes(bytes(128 * KIB))
    server = start_server(journal=disk / "journal")
    with connect(server.url, timeout=1) as store:
        acknowledged: list[str] = []

        def fill() -> None:
            for number in range(200):
                store.set(f"{number}", bytes(KIB))
                acknowledged.append(f"{number}")

        with pytest.raises(ConnectionError, match="gone"):
            fill()
        assert len(acknowledged) > 50
        assert server.process.wait() == 1
        assert "No space left on device" in server.process.errors

        (disk / "something else").unlink()
        server.start_again()
        store.timeout = 20
        assert store.multi_get(acknowledged) == [bytes(KIB)] * len(acknowledged)
        store.set("after", "x")
        assert store.get("after") == b"x"


def test_without_room_to_compact_the_journal_goes_on_as_it_is(
    make_disk: MakeDisk, start_server: StartServer
) -> None:
    """There must be room for the old file and the new one; a journal of 17 MiB is compacted."""
    server = start_server(journal=make_disk(24 * MIB) / "journal")
    values = {f"{number}": bytes([number]) * MIB for number in range(12)}
    with connect(server.url, timeout=20) as store:
        for turn in range(20):
            key = f"{turn % len(values)}"
            store.set(key, values[key])
        server.kill()
        assert "not compacted" in server.process.errors
        server.start_again()
        assert store.multi_get(values) == list(values.values())
