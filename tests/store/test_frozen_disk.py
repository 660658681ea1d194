"""A journal on a disk that does not answer: the server hangs in a write, and everybody with it."""

import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import PROGRAM, Process, Start
from raw_client import OP_GRANT, OP_REFRESH, frame, raw_client, reply
from tensorbus.kvstore import connect

TIME_TO_LIVE = 1.5


class FrozenDisk:
    """A server whose disk can be frozen."""

    def __init__(self, start: Start, folder: Path) -> None:
        hook = folder / "frozen_disk.so"
        source = Path(__file__).parent / "frozen_disk.c"
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(hook), str(source)]
        subprocess.run(command, check=True, timeout=60)
        self._frozen = folder / "frozen"
        self.server: Process = start(
            *(str(PROGRAM), "store", "--port", "0", "--journal", str(folder / "journal")),
            env={"LD_PRELOAD": str(hook), "FROZEN_DISK": str(self._frozen)},
        )
        self.url = self.server.line().removeprefix("ready ")
        self.port = int(self.url.rsplit(":", 1)[1])

    def freeze(self) -> None:
        self._frozen.touch()

    def thaw(self) -> None:
        self._frozen.unlink()


@pytest.fixture
def disk(start_program: Start, tmp_path: Path) -> FrozenDisk:
    return FrozenDisk(start_program, tmp_path)


def test_leases_of_living_holders_outlive_a_journal_that_hangs(disk: FrozenDisk) -> None:
    """Their renewals lie in the sockets, for longer than the leases live."""
    with (
        ThreadPoolExecutor(1) as threads,
        connect(disk.url, timeout=60) as store,
        connect(disk.url, timeout=60) as writer,
        raw_client(disk.port) as dead,
    ):
        leases = [store.lease(TIME_TO_LIVE) for _ in range(20)]
        for number, lease in enumerate(leases):
            store.set(f"alive/{number}", "x", lease=lease)
        grant = struct.pack("<QQq", 1, 77, int(TIME_TO_LIVE * 1e9))
        dead.sendall(frame(1, OP_GRANT, grant))
        assert reply(dead)[1] == 0
        disk.freeze()
        write = threads.submit(writer.set, "written", "x")
        time.sleep(3 * TIME_TO_LIVE)
        assert not write.done(), "the disk was not frozen"
        disk.thaw()
        write.result(30)
        assert len(store.list_keys("alive/")) == len(leases)
        # They go on living, and who does not renew is gone.
        time.sleep(2 * TIME_TO_LIVE)
        assert len(store.list_keys("alive/")) == len(leases)
        assert all(lease.alive for lease in leases)
        dead.sendall(frame(2, OP_REFRESH, struct.pack("<QQ", 2, 77)))
        assert reply(dead)[2] == b"\x00", "it should have lapsed"
