"""Readers that stand still in a pull and hold what they read: publishers wait as they were told."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from buses import Bus, caught
from processes import Process, Start, eventually
from tensorbus import Link
from tensorbus.kvstore import StoreServer

TRAINER, ENGINE = 0, 1
LENGTH = 100_000
PATIENCE = 0.2

READER = """
import sys
import numpy as np
import tensorbus
queue, state, namespace, rank, length = sys.argv[1:]
client = tensorbus.TensorBusClient(int(rank), queue, state, namespace=namespace)
link = client.link("engine", "trainer")
tensor = np.zeros(int(length), np.float32)
for line in sys.stdin:
    print(link.pull("policy", {"w": tensor}, timeout=30), tensor.min(), tensor.max())
"""


class Publisher:
    """Whose tensors hold the number of the version, on two slots."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._link: Link = bus.client(TRAINER).link("trainer")

    def publish(self, version: int, **options: object) -> int:
        tensor = torch.full((LENGTH,), float(version))
        return self._link.publish("policy", {"w": tensor}, version=version, keep=2, **options)

    def warnings(self) -> list[str]:
        """Which version waited for whom."""
        return re.findall(
            r'version (\d+) of batch .* waits: (reader rank .*) still reads what its shelf holds',
            self._bus.agents[TRAINER].errors,
        )  # fmt: skip


@pytest.fixture
def bus(
    store_server: StoreServer, unique: str, start_program: Start, tmp_path: Path
) -> Iterator[Bus]:
    bus = Bus("daemon", store_server.url, unique, start_program, tmp_path)
    bus.halts = True
    yield bus
    bus.close()


@pytest.fixture
def publisher(bus: Bus) -> Publisher:
    publisher = Publisher(bus)
    for version in (1, 2):
        assert publisher.publish(version) == version
    return publisher


@pytest.fixture
def reader(bus: Bus, publisher: Publisher, start_python: Start) -> Process:
    """A worker whose agent has stopped (SIGSTOP) where it reads version 2; version 3 is in the
    other slot."""
    agent = bus.start_agent(ENGINE)
    reader = start_python(
        READER, bus.queue_path(ENGINE), bus.state_path(ENGINE), bus.namespace, ENGINE, LENGTH
    )
    reader.tell("pull")
    assert reader.line() == "2 2.0 2.0"
    bus.halt(ENGINE).arm("reading")
    reader.tell("pull")
    bus.halt(ENGINE).wait(agent)
    assert publisher.publish(3, patience=PATIENCE) == 3, "nobody holds the slot of version 1"
    assert publisher.warnings() == []
    return reader


@pytest.mark.proves("L1.6")
def test_a_publisher_that_waits_names_the_reader_that_stands_still(
    bus: Bus, publisher: Publisher, reader: Process
):
    late = caught(lambda: publisher.publish(4, patience=PATIENCE, timeout=3 * PATIENCE))
    assert isinstance(late, TimeoutError)
    assert "version 4" in str(late)
    assert f"reader rank {ENGINE} still reads what its shelf holds" in str(late)
    eventually(lambda: publisher.warnings() == [("4", f"reader rank {ENGINE}")], "the warning")

    waiting = threading.Thread(target=publisher.publish, args=[5], kwargs={"patience": PATIENCE})
    waiting.start()
    eventually(lambda: len(publisher.warnings()) == 2, "the warning of the next version")
    assert waiting.is_alive()
    bus.agents[ENGINE].signal(signal.SIGCONT)
    assert reader.line() == "2 2.0 2.0", "what it held was kept for it"
    waiting.join(20)
    reader.tell("pull")
    assert reader.line() == "5 5.0 5.0"
    assert publisher.warnings() == [(each, f"reader rank {ENGINE}") for each in ("4", "5")]


@pytest.mark.proves("L1.6")
def test_a_publisher_that_withdraws_names_the_reader_and_goes_on_and_so_does_the_reader(
    bus: Bus, publisher: Publisher, reader: Process
):
    assert publisher.publish(4, patience=PATIENCE, on_full="withdraw") == 4
    eventually(lambda: publisher.warnings() == [("4", f"reader rank {ENGINE}")], "the warning")
    assert publisher.publish(5, patience=PATIENCE, on_full="withdraw") == 5
    bus.agents[ENGINE].signal(signal.SIGCONT)
    assert reader.line() == "5 5.0 5.0", "the pull began again"
