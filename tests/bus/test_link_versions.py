"""What ranks know of each other's versions goes with their messages, not through the store."""

from __future__ import annotations

import pytest
import torch
from buses import Bus, together
from links import links
from processes import Start
from tensorbus import Link, PeerLostError, kvstore

ROUNDS = 100


class Writes:
    """Changes of the records that agents keep in the store."""

    def __init__(self, bus: Bus) -> None:
        self._store = kvstore.connect(bus.url, namespace=bus.namespace)
        self._watch = self._store.watch(component="bus")

    def taken(self) -> list[str]:
        """Keys that were written since the last call, up to a mark that is set now."""
        self._store.set("mark", b"", component="bus")
        keys = []
        while (event := self._watch.next(10)).key != "mark":
            keys.append(event.key)
        return keys


def send(trainers: list[Link], value: float) -> None:
    together(
        *(
            lambda link=link: link.send_state_dict("x", {"w": torch.full((3,), value)})
            for link in trainers
        )
    )


def receive(engines: list[Link]) -> list[int]:
    return together(
        *(lambda link=link: link.recv_state_dict("x", {"w": torch.zeros(3)}) for link in engines)
    )


@pytest.mark.proves("L1.10")
def test_rounds_write_nothing_to_the_store_and_versions_are_known(threads: Bus):
    trainers = links(threads, "t", "e", [0, 1])
    engines = links(threads, "e", "t", [2, 3])
    writes = Writes(threads)
    together(lambda: send(trainers, 1.0), lambda: receive(engines))
    assert writes.taken(), "registrations are records"
    for version in range(2, ROUNDS + 2):
        together(lambda: send(trainers, 1.0), lambda: receive(engines))
        if version % 10 == 0:
            everybody = {"t": {0: version, 1: version}, "e": {2: version, 3: version}}
            for link in (*trainers, *engines):
                assert link.versions("x") == everybody, "true when the call returns"
    assert writes.taken() == []


TRAINER = """
import sys
import torch
import tensorbus

url, namespace, rank = sys.argv[1:]
client = tensorbus.TensorBusClient.embedded(url, int(rank), namespace)
link = client.link("t", "e")
for line in sys.stdin:
    print(link.send_state_dict("x", {"w": torch.ones(3)}, timeout=60), flush=True)
"""


@pytest.mark.proves("L1.10")
def test_versions_go_on_when_all_senders_are_new(threads: Bus, start_python: Start):
    """Nobody but the readers knows the last one."""
    (engine,) = links(threads, "e", "t", [1])
    last = 0
    for expected in ([1, 2], [3, 4]):
        trainer = start_python(TRAINER, threads.url, threads.namespace, 0)
        for version in expected:
            trainer.tell("next")
            got = None
            while got is None or got == last:
                try:
                    got = engine.recv_state_dict("x", {"w": torch.zeros(3)}, timeout=60)
                except PeerLostError:
                    continue  # the trainer before
            assert got == int(trainer.line()) == version
            last = got
        trainer.kill()
