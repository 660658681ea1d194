"""State dicts over a link: names, versions, errors that list everything, deadlines."""

import signal
import threading
import time

import numpy as np
import pytest
import tensorbus
import torch
from buses import Bus, caught, together
from links import dtensor, links, registered
from processes import Start, eventually
from tensorbus import Link


def state(value: float) -> dict:
    return {"embed": torch.full((4, 3), value), "layers": {0: {"w": torch.full((5,), value)}}}


def values(state_dict: dict) -> set[float]:
    return set(state_dict["embed"].unique().tolist()) | set(
        state_dict["layers"][0]["w"].unique().tolist()
    )


def round_trip(senders: list[Link], receivers: list[Link], sent: dict, got: list[dict]) -> None:
    versions = together(
        *(lambda link=link: link.send_state_dict("policy", sent) for link in senders),
        *(
            lambda link=link, into=into: link.recv_state_dict("policy", into)
            for link, into in zip(receivers, got, strict=True)
        ),
    )
    assert len(set(versions)) == 1


def test_versions_count_up_and_everybody_is_told_who_has_which(bus: Bus):
    trainers = links(bus, "trainer", "engine", [0, 1])
    engines = links(bus, "engine", "trainer", [2, 3])
    got = [state(0.0), state(0.0)]
    for step in (1, 2, 3):
        round_trip(trainers, engines, state(float(step)), got)
        assert [values(each) for each in got] == [{step}, {step}]
    versions = together(
        *(lambda link=link: link.send_state_dict("policy", state(9.0), version=9)
          for link in trainers),
        *(lambda link=link, into=into: link.recv_state_dict("policy", into, version=9)
          for link, into in zip(engines, got, strict=True)),
    )  # fmt: skip
    assert versions == [9, 9, 9, 9]
    everywhere = {"trainer": {0: 9, 1: 9}, "engine": {2: 9, 3: 9}}
    for link in (*trainers, *engines):
        eventually(lambda link=link: link.versions("policy") == everywhere, "the versions")
    with pytest.raises(ValueError, match="neither sent nor received"):
        trainers[0].versions("value")


@pytest.mark.proves("L3.2")
def test_a_side_that_is_not_there_is_told_with_who_waits_instead(bus: Bus):
    (trainer,), (engine,) = (
        links(bus, "trainer", "engines", [0]),
        links(bus, "engine", "trainer", [1]),
    )
    sending, receiving = together(
        lambda: caught(lambda: trainer.send_state_dict("policy", state(1.0), timeout=2)),
        lambda: caught(lambda: engine.recv_state_dict("policy", state(0.0), timeout=3)),
    )
    assert 'side "engine" (rank 1) waits for "trainer": did you mean it?' in str(sending)
    assert 'side "trainer" has no ranks' not in str(receiving)

    (late,) = links(bus, "late", "trainers", [2])
    (waits,) = links(bus, "trainer", "late", [3])
    told, _ = together(
        lambda: caught(lambda: late.recv_state_dict("value", state(0.0), timeout=2)),
        lambda: caught(lambda: waits.send_state_dict("value", state(0.0), timeout=3)),
    )
    assert 'side "trainer" (rank 3) waits for "late": did you mean it?' in str(told)


@pytest.mark.proves("L3.2")
def test_a_name_that_is_not_there_is_told_with_those_that_are(bus: Bus):
    (trainer,), (engine,) = (
        links(bus, "trainer", "engine", [0]),
        links(bus, "engine", "trainer", [1]),
    )
    sending, receiving = together(
        lambda: caught(lambda: trainer.send_state_dict("policy", state(1.0), timeout=3)),
        lambda: caught(lambda: engine.recv_state_dict("polcy", state(0.0), timeout=2)),
    )
    assert 'there is "trainer/policy": did you mean it?' in str(receiving)
    assert isinstance(sending, TimeoutError)

    trainer.publish("policy", state(1.0))
    told = caught(lambda: engine.pull("polcy", state(0.0), timeout=1))
    assert 'there is "shelf of trainer/policy": did you mean it?' in str(told)
    assert "did you mean it?" in str(caught(lambda: engine.describe("polcy", timeout=1)))
    trainer.publish("value", state(1.0))
    assert "did you mean one of these?" in str(caught(lambda: engine.describe("polcy", timeout=1)))
    assert engine.pull("policy", state(0.0), timeout=10) == 1


def test_tensors_stay_in_place_and_plans_are_reused(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    sent, got = state(1.0), state(0.0)
    pointers = [got["embed"].data_ptr(), got["layers"][0]["w"].data_ptr()]
    round_trip([trainer], [engine], sent, [got])
    batches = [
        registered(trainer, "policy", send=True),
        registered(engine, "policy", send=False),
    ]
    # Other tensors of the same shapes, on both sides: in the sender's case as state_dict() gives.
    for step in (2, 3):
        got = state(0.0) if step == 3 else got
        round_trip([trainer], [engine], state(float(step)), [got])
        assert values(got) == {step}
    assert batches == [
        registered(trainer, "policy", send=True),
        registered(engine, "policy", send=False),
    ]
    assert pointers[0] != got["embed"].data_ptr()


def test_pooled_tensors_are_read_where_they_are_and_may_not_move(threads: Bus):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    sent = {"w": tensorbus.share_(torch.ones(1000)), "b": np.ones(3)}
    got = {"w": torch.zeros(1000), "b": np.zeros(3)}
    together(lambda: trainer.send_state_dict("x", sent), lambda: engine.recv_state_dict("x", got))
    assert got["w"].sum() == 1000
    assert got["b"].sum() == 3
    sent["w"] = tensorbus.share_(torch.ones(1000))
    with pytest.raises(ValueError, match='"w"'):
        trainer.send_state_dict("x", sent)


def test_everything_that_does_not_fit_is_listed_at_once(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    sent = {
        "a": torch.ones(2),
        "b": {"c": torch.ones(3), "d": torch.ones(4)},
        "same": torch.ones(1),
    }
    got = {"b": {"c": torch.zeros(4), "d": torch.zeros(4, dtype=torch.complex64)},
           "same": torch.zeros(1), "x": torch.zeros(1)}  # fmt: skip
    told: list[Exception | None] = []
    receiving = threading.Thread(
        target=lambda: told.append(caught(lambda: engine.recv_state_dict("policy", got)))
    )
    receiving.start()
    late = caught(lambda: trainer.send_state_dict("policy", sent, timeout=5))
    receiving.join(15)
    assert told, "at once, not at the deadline"
    text = str(told[0])
    assert isinstance(told[0], ValueError), told
    # The sender waited for a receiver that fits, and then said for what.
    assert isinstance(late, TimeoutError), late
    for each in (text, str(late)):
        assert '"a" is missing at "e"' in each
        assert '"x" is missing at "t"' in each
        assert '"b.c"' in each
        assert "shape" in each
        assert '"b.d"' in each
        assert "complex64" in each
        assert '"same"' not in each
    # With what fits the same links work.
    round_trip([trainer], [engine], state(1.0), [state(0.0)])


def test_a_dictionary_that_holds_more_than_tensors_is_refused_by_name(threads: Bus):
    (link,) = links(threads, "t", "e", [0])
    one = torch.ones(1)
    mixed = {"a": 3, "b": {"c": None}, "d.e": one, "d": {"e": one}}
    refused = caught(lambda: link.send_state_dict("x", mixed))
    assert isinstance(refused, ValueError)
    for part in (
        '"a" is no tensor but int',
        '"b.c" is no tensor but NoneType',
        '"d.e" is there twice',
    ):
        assert part in str(refused)
    with pytest.raises(ValueError, match="no tensors"):
        link.send_state_dict("x", {"a": {}})


@pytest.mark.proves("B6.5")
@pytest.mark.parametrize("wrong", ["sender", "receiver"])
@pytest.mark.parametrize("first", ["wrong", "right"])
def test_the_others_are_told_of_a_dictionary_that_holds_more(bus: Bus, wrong: str, first: str):
    trainers = links(bus, "t", "e", [0, 1])
    (engine,) = links(bus, "e", "t", [2])
    calls = {
        "sender": lambda given, **options: trainers[0].send_state_dict("x", given, **options),
        "receiver": lambda given, **options: engine.recv_state_dict("x", given, **options),
    }
    spoilt = calls.pop(wrong)
    (right,) = calls.values()
    others = [
        lambda: caught(lambda: right({"w": torch.ones(1)}, timeout=None)),
        lambda: caught(
            lambda: trainers[1].send_state_dict("x", {"w": torch.ones(1)}, timeout=None)
        ),
    ]
    told: list[Exception | None] = []
    waiting = threading.Thread(target=lambda: told.extend(together(*others)))
    if first == "right":
        waiting.start()
    refused = caught(lambda: spoilt({"w": torch.ones(1), "step": 7}))
    assert '"step" is no tensor but int' in str(refused)
    if first == "wrong":
        waiting.start()
    waiting.join(20)
    assert [type(error) for error in told] == [ValueError, ValueError]
    rank = 0 if wrong == "sender" else 2
    for error in told:
        assert f'rank {rank} failed: state_dict: "step" is no tensor but int' in str(error)
    # All of them try again, and they have been told.
    got = {"w": torch.zeros(1)}
    ones = {"w": torch.ones(1)}
    again = [lambda link=link: link.send_state_dict("x", ones, timeout=5) for link in trainers]
    again.append(lambda: engine.recv_state_dict("x", got, timeout=5))
    errors: list[Exception | None] = []
    while not got["w"]:
        errors += together(*(lambda call=call: caught(call) for call in again))
    assert not any("no tensor" in str(error) for error in errors)


def waits(client: tensorbus.TensorBusClient) -> bool:
    """In one command. Those before it, which ask and lend memory, take a moment each."""
    for _ in range(10):
        if client.command_queue.is_empty():
            return False
        time.sleep(0.02)
    return True


@pytest.mark.proves("B6.5")
@pytest.mark.parametrize("wrong", ["sender", "receiver"])
def test_who_waits_in_a_round_is_told_of_a_dictionary_that_holds_more(bus: Bus, wrong: str):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    round_trip([trainer], [engine], state(1.0), [state(0.0)])
    calls = [
        lambda given: trainer.send_state_dict("policy", given, timeout=None),
        lambda given: engine.recv_state_dict("policy", given, timeout=None),
    ]
    spoilt, right = calls if wrong == "sender" else calls[::-1]
    told: list[Exception | None] = []
    waiting = threading.Thread(target=lambda: told.append(caught(lambda: right(state(2.0)))))
    waiting.start()
    waiter = (engine if wrong == "sender" else trainer)._open_client()
    eventually(lambda: waits(waiter), "the others to wait")
    assert isinstance(caught(lambda: spoilt(state(2.0) | {"step": 7})), ValueError)
    waiting.join(20)
    # A recv that began when the sender had left is told why.
    assert isinstance(told[0], tensorbus.PeerLostError | ValueError), told
    # It comes back, to the sends that are made then.
    got = state(0.0)
    while values(got) != {3.0}:
        again = together(
            lambda: caught(lambda: trainer.send_state_dict("policy", state(3.0), timeout=2)),
            lambda: caught(lambda: engine.recv_state_dict("policy", got, timeout=2)),
        )
        told += [error for error in again if "no tensor" in str(error)]
    assert len(told) <= 2, "it is told once"


def test_a_refusal_is_forgotten_with_who_refused(daemons: Bus):
    (trainer,) = links(daemons, "t", "e", [0])
    assert caught(lambda: trainer.send_state_dict("policy", {"step": 7}))
    trainer._open_client().close()
    (trainer,), (engine,) = links(daemons, "t", "e", [0]), links(daemons, "e", "t", [1])
    round_trip([trainer], [engine], state(1.0), [state(0.0)])


def test_ranks_of_a_side_that_disagree_are_told_what_about(threads: Bus):
    trainers = links(threads, "t", "e", [0, 1])
    (engine,) = links(threads, "e", "t", [2])
    first = {"w": torch.ones(2), "shape": torch.ones(2)}
    second = {"w": torch.ones(2), "shape": torch.ones(3)}
    errors = together(
        lambda: caught(lambda: trainers[0].send_state_dict("x", first)),
        lambda: caught(lambda: trainers[1].send_state_dict("x", second)),
        lambda: caught(lambda: engine.recv_state_dict("x", first)),
    )
    for error in errors:
        assert isinstance(error, ValueError), error
        assert '"shape"' in str(error)
        assert '"w"' not in str(error)


def test_shapes_may_change_when_both_sides_change_them(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    round_trip([trainer], [engine], state(1.0), [state(0.0)])
    grown = {"embed": torch.full((6, 3), 2.0), "more": torch.ones(2)}
    into = {"embed": torch.zeros(6, 3), "more": torch.zeros(2)}
    sending = threading.Thread(target=lambda: trainer.send_state_dict("policy", grown))
    sending.start()
    assert engine.recv_state_dict("policy", into) == 2
    sending.join()
    assert into["embed"].unique().tolist() == [2.0]
    # One side alone: it waits for the other, then says what differs.
    with pytest.raises(TimeoutError, match='"more" is missing'):
        trainer.send_state_dict("policy", {"embed": torch.ones(6, 3)}, timeout=0.5)


def test_a_receiver_passes_over_earlier_versions_and_refuses_later_ones(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    got = state(0.0)
    sent: list[int] = []
    sending = threading.Thread(
        target=lambda: sent.extend(
            trainer.send_state_dict("policy", state(float(n))) for n in (1, 2, 3)
        )
    )
    sending.start()
    assert engine.recv_state_dict("policy", got, version=3) == 3
    assert values(got) == {3}
    sending.join(20)
    assert sent == [1, 2, 3]
    eventually(lambda: trainer.versions("policy")["e"] == {1: 3}, "the version")
    sending = threading.Thread(
        target=lambda: trainer.send_state_dict("policy", state(7.0), version=7)
    )
    sending.start()
    with pytest.raises(RuntimeError, match=r"version 5 was asked for.*version 7"):
        engine.recv_state_dict("policy", got, version=5)
    assert values(got) == {3}
    assert engine.recv_state_dict("policy", got) == 7
    sending.join(20)


def test_senders_with_different_versions_are_named(threads: Bus):
    trainers = links(threads, "t", "e", [0, 1])
    (engine,) = links(threads, "e", "t", [2])
    halves = [{"w": dtensor(torch.ones(2), [4], [0, 1], [("S", 0)], rank)} for rank in (0, 1)]
    errors = together(
        lambda: caught(lambda: trainers[0].send_state_dict("x", halves[0], version=4)),
        lambda: caught(lambda: trainers[1].send_state_dict("x", halves[1], version=6)),
        lambda: caught(lambda: engine.recv_state_dict("x", {"w": torch.zeros(4)})),
    )
    assert all(isinstance(error, RuntimeError) for error in errors), errors
    assert "rank 0 sends version 4 while rank 1 sends version 6" in str(errors[2])


def test_a_rank_with_nothing_to_read_follows_the_versions(bus: Bus):
    (trainer,) = links(bus, "t", "e", [0])
    engines = links(bus, "e", "t", [1, 2, 3])
    whole = torch.arange(2.0)
    parts = [
        {"w": dtensor(torch.zeros(size), [2], [0, 1, 2], [("S", 0)], rank)}
        for rank, size in enumerate((1, 1, 0))
    ]
    for step in (1, 2):
        versions = together(
            lambda: trainer.send_state_dict("x", {"w": whole}),
            *(lambda link=link, into=into: link.recv_state_dict("x", into)
              for link, into in zip(engines, parts, strict=True)),
        )  # fmt: skip
        assert versions == [step] * 4
    assert torch.equal(torch.cat([part["w"].to_local() for part in parts]), whole)


def test_deadlines_say_who_is_missing(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    with pytest.raises(TimeoutError, match='"e"'):
        trainer.send_state_dict("policy", state(1.0), timeout=0.3)
    round_trip([trainer], [engine], state(1.0), [state(0.0)])
    with pytest.raises(TimeoutError, match="rank 1"):
        trainer.send_state_dict("policy", state(2.0), timeout=0.3)
    with pytest.raises(TimeoutError, match="rank 0"):
        engine.recv_state_dict("policy", state(0.0), timeout=0.3)
    got = state(0.0)
    round_trip([trainer], [engine], state(3.0), [got])
    assert values(got) == {3}
    assert trainer.versions("policy")["t"] == {0: 3}, "a failed send uses its number up"


def test_several_names_and_both_directions_over_one_client(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    weights, scores = {"w": torch.zeros(3)}, {"s": torch.zeros(2)}
    for step in (1, 2):
        together(
            lambda step=step: trainer.send_state_dict("w", {"w": torch.full((3,), float(step))}),
            lambda: engine.recv_state_dict("w", weights),
        )
        together(
            lambda step=step: engine.send_state_dict("s", {"s": torch.full((2,), float(step))}),
            lambda: trainer.recv_state_dict("s", scores),
        )
        assert weights["w"].tolist() == [step] * 3
        assert scores["s"].tolist() == [step] * 2
    trainer.close()
    engine.close()


WAITER = """
import sys, numpy as np, tensorbus
url, namespace, what = sys.argv[1:]
client = tensorbus.TensorBusClient.embedded(url, 0, namespace)
link = client.link("a", "b", 1)
try:
    print("waiting")
    if what == "send":
        link.send_state_dict("x", {"w": np.zeros(3)}, timeout=None)
    else:
        link.recv_state_dict("x", {"w": np.zeros(3)}, timeout=None)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("what", ["send", "recv"])
def test_ctrl_c_ends_a_wait_for_the_other_side(threads: Bus, start_python: Start, what: str):
    worker = start_python(WAITER, threads.url, threads.namespace, what)
    assert worker.line() == "waiting"
    worker.signal(signal.SIGINT)
    assert worker.line(10) == "interrupted"
    assert worker.wait() == 0, worker.errors
