"""Versions that are published and pulled: nobody waits for the other side."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import tensorbus
import torch
from buses import Bus, caught, together
from links import dtensor, links
from processes import Process, Start, eventually
from tensorbus import EndOfStreamError, Link, VersionGoneError
from torch_oracle import same_bits


def state(value: float) -> dict:
    return {"embed": torch.full((4, 3), value), "layers": {0: {"w": torch.full((5,), value)}}}


def values(state_dict: dict) -> set[float]:
    return set(state_dict["embed"].unique().tolist()) | set(
        state_dict["layers"][0]["w"].unique().tolist()
    )


def publishers(bus: Bus, ranks: list[int], name: str = "trainer") -> list[Link]:
    return [bus.client(rank).link(name, expected_world_size=len(ranks)) for rank in ranks]


def publish_all(trainers: list[Link], value: float, **options: object) -> list[int]:
    return together(
        *(lambda link=link: link.publish("policy", state(value), **options) for link in trainers)
    )


@pytest.mark.proves("L1.1", "L1.3", "L1.8")
def test_versions_are_published_without_readers_and_pulled_at_any_time(bus: Bus):
    trainers = publishers(bus, [0, 1])
    assert [publish_all(trainers, float(step)) for step in (1, 2, 3)] == [[1, 1], [2, 2], [3, 3]]
    assert trainers[0].newest("policy") == 3
    (engine,) = links(bus, "engine", "trainer", [2])
    views = state(0.0)
    assert engine.pull("policy", views) == 3
    assert values(views) == {3.0}
    assert engine.pull("policy", views, version=2) == 2
    assert values(views) == {2.0}
    assert engine.newest("policy") == 3
    assert publish_all(trainers, 9.0, version=9) == [9, 9]
    assert engine.pull("policy", views, newer_than=3) == 9
    assert values(views) == {9.0}
    with pytest.raises(TimeoutError, match="a version above 9"):
        engine.pull("policy", views, newer_than=9, timeout=0.3)


@pytest.mark.proves("L1.1")
def test_tensors_are_the_callers_again_when_publish_returns(bus: Bus):
    (trainer,), (engine,) = publishers(bus, [0]), links(bus, "engine", "trainer", [1])
    tensor = tensorbus.share_(torch.full((7,), 1.0))
    for step in (1.0, 2.0, 3.0):
        tensor.fill_(step)
        trainer.publish("policy", {"w": tensor})
        tensor.fill_(-1.0)
        into = torch.zeros(7)
        engine.pull("policy", {"w": into})
        assert into.tolist() == [step] * 7


@pytest.mark.proves("L1.2")
def test_a_shelf_of_a_narrower_type_gives_what_torch_gives(bus: Bus):
    (trainer,), (engine,) = publishers(bus, [0]), links(bus, "engine", "trainer", [1])
    wide = torch.randn(1000) * 1e3
    wide[:4] = torch.tensor([float("inf"), float("nan"), -0.0, 1e-42])
    sent = {"w": wide, "half": torch.randn(8).half(), "count": torch.arange(5)}
    trainer.publish("policy", sent, dtype=torch.bfloat16)
    got = {"w": torch.zeros(1000), "half": torch.zeros(8).half(), "count": torch.zeros(5).long()}
    engine.pull("policy", got)
    assert same_bits(got["w"], wide.to(torch.bfloat16).to(torch.float32))
    assert same_bits(got["half"], sent["half"])
    assert same_bits(got["count"], sent["count"])


@pytest.mark.proves("L1.2")
def test_what_is_to_be_reduced_is_kept_in_its_own_type(bus: Bus):
    """Narrowed before the sum it would be rounded twice."""
    trainers, (engine,) = publishers(bus, [0, 1]), links(bus, "engine", "trainer", [2])
    parts = [torch.randn(1000) * 1e3, torch.randn(1000)]
    together(
        *(lambda rank=rank, link=link: link.publish(
            "policy", {"w": dtensor(parts[rank], [1000], [0, 1], [("P",)], rank)},
            dtype=torch.bfloat16)
          for rank, link in enumerate(trainers)),
    )  # fmt: skip
    exact, narrow = {"w": torch.zeros(1000)}, {"w": torch.zeros(1000).bfloat16()}
    engine.pull("policy", exact)
    assert same_bits(exact["w"], parts[0] + parts[1])
    engine.pull("policy", narrow)
    assert same_bits(narrow["w"], (parts[0] + parts[1]).bfloat16())


@pytest.mark.proves("L1.3")
def test_layouts_of_both_sides_may_differ(bus: Bus):
    whole = torch.arange(35.0).reshape(5, 7)
    trainers = publishers(bus, [0, 1])
    parts = [
        {"w": dtensor(part.clone(), [5, 7], [0, 1], [("S", 0)], rank)}
        for rank, part in enumerate(whole.chunk(2, 0))
    ]
    together(
        *(lambda link=link, part=part: link.publish("policy", part)
          for link, part in zip(trainers, parts, strict=True))
    )  # fmt: skip
    engines = links(bus, "engine", "trainer", [2, 3])
    views = [
        {"w": dtensor(torch.zeros_like(part), [5, 7], [0, 1], [("S", 1)], rank)}
        for rank, part in enumerate(whole.chunk(2, 1))
    ]
    pulled = together(
        *(lambda link=link, view=view: link.pull("policy", view)
          for link, view in zip(engines, views, strict=True))
    )  # fmt: skip
    assert pulled == [1, 1]
    for view, part in zip(views, whole.chunk(2, 1), strict=True):
        assert same_bits(view["w"].to_local(), part.contiguous())


@pytest.mark.proves("L1.3", "L1.11")
def test_what_is_gone_and_what_never_comes_are_errors_of_their_own(bus: Bus):
    (trainer,), (engine,) = publishers(bus, [0]), links(bus, "engine", "trainer", [1])
    for step in (1.0, 2.0, 3.0):
        trainer.publish("policy", state(step))
    views = state(0.0)
    with pytest.raises(VersionGoneError, match="version 1 is not there any more"):
        engine.pull("policy", views, version=1)
    with pytest.raises(ValueError, match="both given"):
        engine.pull("policy", views, version=1, newer_than=1)
    ended: list[Exception | None] = []

    def wait_for_more() -> None:
        engine.pull("policy", state(0.0), newer_than=3, timeout=20)

    waiting = threading.Thread(target=lambda: ended.append(caught(wait_for_more)))
    waiting.start()
    time.sleep(0.2)
    trainer.close()
    waiting.join(10)
    assert isinstance(ended[0], EndOfStreamError)
    assert 'side "trainer" has ended after version 3' in str(ended[0])
    assert engine.pull("policy", views) == 3, "what there is can be pulled on"


@pytest.mark.proves("L1.1")
def test_arguments_of_publish_are_checked(threads: Bus):
    (trainer,) = publishers(threads, [0])
    for options, match in [
        ({"keep": 1}, "at least 2"),
        ({"on_full": "drop"}, "on_full"),
        ({"patience": -1.0}, "patience"),
    ]:
        with pytest.raises(ValueError, match=match):
            trainer.publish("policy", state(1.0), **options)
    trainer.publish("policy", state(1.0), version=4)
    with pytest.raises(ValueError, match="the last one is 4"):
        trainer.publish("policy", state(1.0), version=4)
    with pytest.raises(ValueError, match="remote_name"):
        trainer.send_state_dict("policy", state(1.0))
    with pytest.raises(ValueError, match="neither published nor pulled"):
        trainer.newest("value")


@pytest.mark.proves("L1.1", "L1.2")
def test_with_another_keep_or_type_versions_go_on(bus: Bus):
    trainers, (engine,) = publishers(bus, [0, 1]), links(bus, "engine", "trainer", [2])
    views = state(0.0)
    publish_all(trainers, 1.0, keep=2)
    assert engine.pull("policy", views) == 1
    for version in (2, 3, 4):
        assert publish_all(trainers, float(version), keep=3) == [version, version]
    assert engine.pull("policy", views, newer_than=3) == 4
    assert engine.pull("policy", views, version=2) == 2, "two are behind it: three are kept"
    assert values(views) == {2.0}
    finer = 1 + 2**-8  # than bfloat16 can tell from 1
    assert publish_all(trainers, finer, keep=3, dtype=torch.bfloat16) == [5, 5]
    assert engine.pull("policy", views, newer_than=4) == 5
    assert values(views) == {1.0}


@pytest.mark.proves("L1.1")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([{"keep": 2}, {"keep": 3}], ["rank 0 keeps 2", "rank 1 keeps 3"]),
        (
            [{"dtype": None}, {"dtype": torch.bfloat16}],
            ["rank 0 has float32", "rank 1 has bfloat16"],
        ),
    ],
    ids=["keep", "dtype"],
)
def test_ranks_that_publish_differently_are_told(bus: Bus, options: list[dict], told: list[str]):
    trainers = publishers(bus, [0, 1])

    def publish(rank: int) -> Exception | None:
        call = trainers[rank].publish
        return caught(lambda: call("policy", state(1.0), **options[rank], timeout=10))

    for error in together(lambda: publish(0), lambda: publish(1)):
        assert isinstance(error, ValueError)
        assert all(part in str(error) for part in told), error


@pytest.mark.proves("L1.6")
def test_a_rank_that_runs_ahead_waits_and_names_the_other(bus: Bus):
    trainers = publishers(bus, [0, 1])
    publish_all(trainers, 1.0)
    trainers[0].publish("policy", state(2.0))
    with pytest.raises(TimeoutError, match="rank 1 has not published version 2"):
        trainers[0].publish("policy", state(3.0), timeout=0.3)
    assert trainers[1].publish("policy", state(2.0)) == 2


@pytest.mark.proves("L1.3")
def test_a_reader_that_does_not_fit_is_told_and_nobody_else_minds(bus: Bus):
    (trainer,), (engine,) = publishers(bus, [0]), links(bus, "engine", "trainer", [1])
    trainer.publish("policy", state(1.0))
    with pytest.raises(ValueError, match="embed"):
        engine.pull("policy", {"embed": torch.zeros(2, 2), "layers": {0: {"w": torch.zeros(5)}}})
    assert trainer.publish("policy", state(2.0)) == 2
    views = state(0.0)
    assert engine.pull("policy", views) == 2
    trainer.publish("policy", {"w": torch.ones(3)})
    other = {"w": torch.zeros(3)}
    eventually(lambda: caught(lambda: engine.pull("policy", other, timeout=1)) is None, "the new")
    assert other["w"].tolist() == [1.0] * 3


PUBLISHER = """
import itertools, sys
import numpy as np
import tensorbus
queue, state, namespace, rank, size = sys.argv[1:]
client = tensorbus.TensorBusClient(int(rank), queue, state, namespace=namespace)
link = client.link("trainer", expected_world_size=int(size))
tensors = {"w": np.zeros(40_000, np.float32), "v": np.zeros(3, np.float32)}
for line in sys.stdin:
    for step in range(int(line)) if int(line) else itertools.count():
        last = getattr(link, "at", 0)
        for tensor in tensors.values():
            tensor.fill(last + 1)
        link.at = link.publish("policy", tensors)
        if int(line): print(link.at)
"""


class Publisher:
    """A worker in a process of its own, which fills its tensors with the number of the version."""

    def __init__(self, bus: Bus, start: Start, rank: int, size: int) -> None:
        if rank not in bus.agents:
            bus.start_agent(rank)
        self.process: Process = start(
            sys.executable, "-c", PUBLISHER, bus.queue_path(rank), bus.state_path(rank),
            bus.namespace, str(rank), str(size),
        )  # fmt: skip

    def publish(self, count: int) -> None:
        self.process.tell(str(count))

    def versions(self, count: int) -> list[int]:
        return [int(self.process.line()) for _ in range(count)]


@pytest.fixture
def pair_of_publishers(daemons: Bus, start_program: Start) -> list[Publisher]:
    return [Publisher(daemons, start_program, rank, 2) for rank in (0, 1)]


@pytest.mark.proves("L1.7", "L1.13")
def test_a_shelf_outlives_its_worker(
    daemons: Bus, start_program: Start, pair_of_publishers: list[Publisher]
):
    one, other = pair_of_publishers
    for publisher in (one, other):
        publisher.publish(2)
    assert one.versions(2) == other.versions(2) == [1, 2]
    other.process.kill()
    (engine,) = links(daemons, "engine", "trainer", [2])
    views = {"w": torch.zeros(40_000), "v": torch.zeros(3)}
    assert engine.pull("policy", views) == 2
    assert views["w"].unique().tolist() == [2.0]
    one.process.kill()
    late = links(daemons, "late", "trainer", [3])[0]
    assert late.pull("policy", views) == 2, "nobody who published it lives"
    again = [Publisher(daemons, start_program, rank, 2) for rank in (0, 1)]
    for publisher in again:
        publisher.publish(1)
    assert [publisher.versions(1) for publisher in again] == [[3], [3]]
    assert engine.pull("policy", views, newer_than=2) == 3


@pytest.mark.proves("L1.7")
def test_a_shelf_is_forgotten_after_the_time_that_its_agent_was_told(
    daemons: Bus, start_program: Start
):
    daemons.start_agent(0, "--retain", "0.5")
    publisher = Publisher(daemons, start_program, 0, 1)
    publisher.publish(1)
    assert publisher.versions(1) == [1]
    (engine,) = links(daemons, "engine", "trainer", [2])
    views = {"w": torch.zeros(40_000), "v": torch.zeros(3)}
    assert engine.pull("policy", views) == 1
    publisher.process.kill()
    eventually(
        lambda: isinstance(caught(lambda: engine.pull("policy", views, timeout=0.3)), TimeoutError),
        "the shelf to be forgotten",
    )


@pytest.mark.proves("L1.5")
def test_whatever_is_pulled_is_whole_while_slots_are_recycled(
    daemons: Bus, pair_of_publishers: list[Publisher]
):
    for publisher in pair_of_publishers:
        publisher.publish(0)  # for ever
    (engine,) = links(daemons, "engine", "trainer", [2])
    views = {"w": torch.zeros(40_000), "v": torch.zeros(3)}
    last = 0
    for _ in range(30):
        version = engine.pull("policy", views)
        assert version >= last
        assert views["w"].unique().tolist() == views["v"].unique().tolist() == [float(version)]
        last = version
    assert last > 1


@pytest.mark.proves("L1.13")
def test_survivors_publish_again_when_all_have_registered_again(daemons: Bus, start_program: Start):
    (trainer,) = [daemons.client(0).link("trainer", expected_world_size=2)]
    other = Publisher(daemons, start_program, 1, 2)
    tensors = {"w": torch.ones(40_000), "v": torch.ones(3)}
    other.publish(1)
    assert trainer.publish("policy", tensors) == 1
    assert other.versions(1) == [1]
    other.process.kill()

    eventually(
        lambda: getattr(
            caught(lambda: trainer.publish("policy", tensors, timeout=0.5)), "stale", False
        ),
        "the loss to be told",
    )
    again = Publisher(daemons, start_program, 1, 2)
    again.publish(1)
    version = trainer.publish("policy", tensors)
    assert version > 1
    assert again.versions(1) == [version]


@pytest.mark.proves("L1.1", "L1.3", "L1.13")
def test_all_ranks_that_have_registered_again_may_count_from_another_number(bus: Bus):
    clients = [bus.client(rank) for rank in (0, 1)]
    trainers = [client.link("trainer", expected_world_size=2) for client in clients]
    (engine,) = links(bus, "engine", "trainer", [2])
    views = state(0.0)

    def lose_one() -> None:
        trainers[1].close()
        eventually(
            lambda: getattr(
                caught(lambda: trainers[0].publish("policy", state(-1.0), timeout=0.5)),
                "stale", False,
            ),
            "the loss to be told",
        )  # fmt: skip
        trainers[1] = clients[1].link("trainer", expected_world_size=2)

    for version in (1, 2, 3):
        assert publish_all(trainers, float(version)) == [version, version]
    lose_one()
    assert publish_all(trainers, 20.0, version=20) == [20, 20]
    assert publish_all(trainers, 21.0) == [21, 21]
    for link in trainers:
        with pytest.raises(ValueError, match="version 21 was asked for, and the last one is 21"):
            link.publish("policy", state(0.0), version=21)
    assert engine.pull("policy", views, newer_than=20) == 21
    lose_one()
    assert publish_all(trainers, 5.0, version=5) == [5, 5], "above the last of its generation"
    assert publish_all(trainers, 6.0) == [6, 6]
    eventually(
        lambda: engine.pull("policy", views, newer_than=21) == 6,
        "the engine to read what was published after all registered again",
    )
    assert values(views) == {6.0}


@pytest.mark.proves("L1.3", "L1.7", "L1.11")
def test_a_trainer_that_counts_from_a_lower_number_is_newer(threads: Bus):
    """With an embedded agent what it had published ends with it, and pulls say so meanwhile."""
    client = threads.client(0)
    trainer = client.link("trainer")
    for step in (1, 2, 3, 4, 5):
        trainer.publish("policy", state(float(step)))
    (engine,), (late,) = (links(threads, name, "trainer", [rank]) for name, rank in
                          [("engine", 1), ("late", 2)])  # fmt: skip
    views = state(0.0)
    assert engine.pull("policy", views) == 5
    client.close()
    told: list[Exception | None] = [None]

    def is_gone() -> bool:
        told[0] = caught(lambda: engine.pull("policy", views, timeout=5))
        return told[0] is not None

    eventually(is_gone, "the shelf to go with its agent")
    assert isinstance(told[0], EndOfStreamError)
    assert 'side "trainer" has ended after version 5' in str(told[0])
    assert "what it published is gone with its agents" in str(told[0])
    with pytest.raises(TimeoutError, match='nobody has published "shelf of trainer/policy" yet'):
        late.pull("policy", views, timeout=0.5)
    again = threads.client(0).link("trainer")
    assert again.publish("policy", state(1.5), version=1) == 1
    eventually(
        lambda: caught(lambda: engine.pull("policy", views, newer_than=5, timeout=5)) is None,
        "the new shelf to be found",
    )
    assert values(views) == {1.5}
    assert engine.newest("policy") == 1


EMBEDDED = """
import sys
import torch
import tensorbus

url, namespace = sys.argv[1:]
link = tensorbus.TensorBusClient.embedded(url, 0, namespace).link("trainer")
print(link.publish("policy", {"w": torch.ones(3)}), flush=True)
sys.stdin.read()
"""


@pytest.mark.proves("L1.7")
def test_a_pull_says_that_an_embedded_shelf_ends_with_its_process(
    threads: Bus, start_python: Start
):
    trainer = start_python(EMBEDDED, threads.url, threads.namespace)
    assert trainer.line() == "1"
    (engine,) = links(threads, "engine", "trainer", [1])
    views = {"w": torch.zeros(3)}
    assert engine.pull("policy", views) == 1
    trainer.kill()
    told: list[Exception | None] = [None]

    def is_gone() -> bool:
        told[0] = caught(lambda: engine.pull("policy", views, timeout=0.5))
        return told[0] is not None

    eventually(is_gone, "the shelf to go with its process")
    assert isinstance(told[0], TimeoutError)
    assert "whose shelves this rank has not joined" in str(told[0])


@pytest.mark.proves("L1.13")
def test_versions_go_on_when_a_publishers_agent_is_replaced(daemons: Bus):
    (trainer,) = publishers(daemons, [0])
    for version in (1, 2, 3):
        assert trainer.publish("policy", state(float(version))) == version
    (engine,) = links(daemons, "engine", "trainer", [1])
    views = state(0.0)
    assert engine.pull("policy", views) == 3
    daemons.agents[0].kill()
    daemons.start_agent(0)
    eventually(
        lambda: caught(lambda: trainer.publish("policy", state(4.0), timeout=5)) is None,
        "the publisher to be registered with its new agent",
        pause=0.1,
    )
    assert trainer.newest("policy") > 3
    assert engine.pull("policy", views) == trainer.newest("policy")
    assert values(views) == {4.0}


@pytest.mark.proves("L1.3", "L2.1", "L2.3", "L2.5")
def test_parts_are_published_and_pulled_as_they_are_sent(bus: Bus):
    whole = torch.arange(60.0).reshape(10, 6)
    parts = [tensorbus.Part(whole[:5], (10, 6), (0, 0)), tensorbus.Part(whole[5:], (10, 6), (5, 0))]
    sent = list(zip(publishers(bus, [0, 1]), parts, strict=True))

    def publish(step: int) -> None:
        whole.add_(step)
        together(
            *(
                lambda link=link, part=part: link.publish("policy", {"w": part, "b": whole[0]})
                for link, part in sent
            )
        )

    publish(1)
    (engine,) = links(bus, "engine", "trainer", [2])
    columns = torch.zeros(12, 2, dtype=torch.bfloat16)
    views = {"w": tensorbus.Part(columns, (10, 6), (0, 3), pad=-1)}
    with pytest.raises(ValueError, match='"b" is missing at "engine"'):
        engine.pull("policy", views, timeout=10)
    for version in (1, 2, 3):
        assert engine.pull("policy", views, subset=True, timeout=10) == version
        assert same_bits(columns[:10], whole[:, 3:5].to(torch.bfloat16))
        assert columns[10:].unique().tolist() == [-1.0]
        publish(version)


@pytest.mark.proves("L1.7")
def test_shelves_of_several_names_are_replaced_one_by_one(bus: Bus):
    names = ["policy", "value", "reward"]
    client = bus.client(0)
    for step in (1.0, 2.0):
        trainer = client.link("trainer")
        for name in names:
            trainer.publish(name, {"w": torch.full((3,), step)})
        trainer.close()
    (engine,) = links(bus, "engine", "trainer", [1])
    for name in names:
        into = torch.zeros(3)
        engine.pull(name, {"w": into}, timeout=10)
        assert into.tolist() == [2.0] * 3
