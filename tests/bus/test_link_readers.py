"""What a send over a link waits for, and what is known of readers when it has returned."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from buses import Bus, caught, together
from links import links
from processes import Start, eventually
from tensorbus import Link, PeerLostError


def received(link: Link) -> tuple[int, float]:
    got = {"w": torch.zeros(3)}
    return link.recv_state_dict("x", got), got["w"][0].item()


class Sends:
    """The same version, sent by all these links on threads."""

    def __init__(self, senders: list[Link], value: float) -> None:
        self.returned: dict[int, int] = {}
        self._threads = [
            threading.Thread(target=self._run, args=[at, link, value], daemon=True)
            for at, link in enumerate(senders)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, at: int, link: Link, value: float) -> None:
        self.returned[at] = link.send_state_dict("x", {"w": torch.full((3,), value)})

    def finish(self) -> dict[int, int]:
        for thread in self._threads:
            thread.join(20)
        return self.returned


@pytest.mark.proves("L1.9", "L1.10")
def test_a_send_returns_when_every_reader_has_read_at_every_sender(bus: Bus):
    # Replicated: each engine reads all of it from one of the trainers only.
    trainers = links(bus, "t", "e", [0, 1])
    engines = links(bus, "e", "t", [2, 3])
    for version in (1, 2, 3):
        sends = Sends(trainers, float(version))
        first, second = engines if version % 2 else reversed(engines)
        if version == 1:  # the first calls wait for all of both sides
            assert together(lambda: received(engines[0]), lambda: received(engines[1])) == [
                (1, 1.0), (1, 1.0)
            ]  # fmt: skip
        else:
            assert received(first) == (version, float(version))
            time.sleep(0.3)  # time to return for a sender that minds its own readers only
            assert sends.returned == {}, "a send returned before all had read"
            assert received(second) == (version, float(version))
        assert sends.finish() == {0: version, 1: version}
        everywhere = {"t": {0: version, 1: version}, "e": {2: version, 3: version}}
        for trainer in trainers:
            assert trainer.versions("x")["e"] == everywhere["e"], "known when the send returned"


@pytest.mark.proves("L1.9")
def test_a_send_waits_for_as_many_readers_as_it_was_told(bus: Bus):
    trainers = links(bus, "t", "e", [0, 1])
    (engine,) = links(bus, "e", "t", [2])
    sends = Sends(trainers, 1.0)
    assert received(engine) == (1, 1.0)
    sends.finish()
    engine.close()
    # Nobody is there: without a number it returns at once.
    eventually(lambda: "e" not in trainers[0].versions("x"), "the engine to be gone")
    results = []

    def send(link: Link) -> None:
        results.append(link.send_state_dict("x", {"w": torch.full((3,), 2.0)}, min_readers=1))

    threads = [threading.Thread(target=send, args=[link], daemon=True) for link in trainers]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert results == []
    assert received(engine) == (2, 2.0)
    for thread in threads:
        thread.join(20)
    assert results == [2, 2]


@pytest.mark.proves("L1.9")
def test_too_few_readers_are_named_at_the_deadline(threads: Bus):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    sends = Sends([trainer], 1.0)
    assert received(engine) == (1, 1.0)
    sends.finish()
    error = caught(
        lambda: trainer.send_state_dict("x", {"w": torch.ones(3)}, min_readers=2, timeout=0.5)
    )
    assert isinstance(error, TimeoutError)
    assert "it wants 2" in str(error)
    with pytest.raises(ValueError, match="min_readers"):
        trainer.send_state_dict("x", {"w": torch.ones(3)}, min_readers=-1)


ENGINE = """
import sys
import torch
import tensorbus

url, namespace, rank = sys.argv[1:]
client = tensorbus.TensorBusClient.embedded(url, int(rank), namespace)
link = client.link("e", "t", 1)
while True:
    print("got", link.recv_state_dict("x", {"w": torch.zeros(3)}, timeout=60), flush=True)
"""


@pytest.mark.proves("L1.10")
def test_a_rank_whose_death_was_reported_is_not_listed(threads: Bus, start_python: Start):
    (trainer,) = links(threads, "t", "e", [0])
    sent = {"w": torch.ones(3)}
    engine = start_python(ENGINE, threads.url, threads.namespace, 1)
    assert trainer.send_state_dict("x", sent) == 1
    assert trainer.versions("x") == {"t": {0: 1}, "e": {1: 1}}
    engine.kill()
    error = None
    while error is None:  # a send that had begun before says so, a later one finds nobody
        error = caught(lambda: trainer.send_state_dict("x", sent))
        if "e" not in trainer.versions("x"):
            break
    assert error is None or isinstance(error, PeerLostError)
    assert "e" not in trainer.versions("x")
    again = start_python(ENGINE, threads.url, threads.namespace, 1)
    version = trainer.send_state_dict("x", sent, min_readers=1)
    assert again.line() == f"got {version}"
    assert trainer.versions("x")["e"] == {1: version}
