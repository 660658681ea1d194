"""Several threads on one link: they take turns for a name and direction."""

import os
import signal
import threading
import time

import pytest
import torch
from buses import Bus, caught, together
from links import is_sending, links
from processes import Start, eventually

SIZES = [(300, 1000), (7,), (64, 1024)]


def state(value: float) -> dict[str, torch.Tensor]:
    return {str(index): torch.full(size, value) for index, size in enumerate(SIZES)}


def values(state_dict: dict[str, torch.Tensor]) -> list[float]:
    return sorted({value for each in state_dict.values() for value in each.unique().tolist()})


def test_threads_that_send_one_name_tear_nothing(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    each, senders = 8, 3
    sent: dict[int, float] = {}

    def send(sender: int) -> None:
        for step in range(each):
            value = float(100 * sender + step)
            sent[trainer.send_state_dict("policy", state(value))] = value

    def receive() -> dict[int, list[float]]:
        got = state(-1.0)
        return {engine.recv_state_dict("policy", got): values(got) for _ in range(each * senders)}

    received, *_ = together(receive, *(lambda n=n: send(n) for n in range(senders)))
    assert received == {version: [value] for version, value in sent.items()}


def test_threads_that_receive_one_name_get_a_version_each(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    count = 12

    def receive(into: dict[int, list[float]]) -> None:
        for _ in range(count // 2):
            got = state(-1.0)
            version = engine.recv_state_dict("policy", got)
            into[version] = values(got)

    received: dict[int, list[float]] = {}
    together(
        lambda: [trainer.send_state_dict("policy", state(float(n + 1))) for n in range(count)],
        lambda: receive(received),
        lambda: receive(received),
    )
    assert received == {version: [float(version)] for version in range(1, count + 1)}


def test_other_names_do_not_wait(threads: Bus):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    blocked = threading.Thread(
        target=lambda: caught(lambda: trainer.send_state_dict("alone", state(1.0), timeout=30))
    )
    blocked.start()
    got = state(0.0)
    together(
        lambda: trainer.send_state_dict("other", state(2.0)),
        lambda: engine.recv_state_dict("other", got),
    )
    assert values(got) == [2.0]
    engine.recv_state_dict("alone", got)
    blocked.join(20)
    assert values(got) == [1.0]


def test_a_thread_waits_for_its_turn_no_longer_than_it_may(threads: Bus):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    first = threading.Thread(target=lambda: trainer.send_state_dict("x", state(1.0)))
    first.start()
    eventually(lambda: is_sending(trainer, "x"), "the first to have its turn")
    with pytest.raises(TimeoutError, match=r'another thread is sending "x" over this link'):
        trainer.send_state_dict("x", state(2.0), timeout=0.2)
    got = state(0.0)
    assert engine.recv_state_dict("x", got) == 1
    first.join(20)
    assert values(got) == [1.0]
    # It had no number either.
    together(
        lambda: trainer.send_state_dict("x", state(3.0)), lambda: engine.recv_state_dict("x", got)
    )
    assert values(got) == [3.0]


def test_close_ends_what_another_thread_sends(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    got = state(0.0)
    together(
        lambda: trainer.send_state_dict("x", state(1.0)), lambda: engine.recv_state_dict("x", got)
    )
    errors: list[Exception | None] = []
    sending = threading.Thread(
        target=lambda: errors.append(caught(lambda: trainer.send_state_dict("x", state(2.0))))
    )
    sending.start()
    client = trainer._open_client()
    eventually(lambda: not client.command_queue.is_empty(), "the send to be queued")
    trainer.close()
    sending.join(10)
    assert not sending.is_alive()
    assert "closed" in str(errors[0])


WAITER = """
import sys, threading, numpy as np, tensorbus
url, namespace = sys.argv[1:]
client = tensorbus.TensorBusClient.embedded(url, 0, namespace)
link = client.link("a", "b", 1)
first = threading.Thread(
    target=lambda: link.send_state_dict("x", {"w": np.zeros(3)}, timeout=20), daemon=True)
first.start()
while not link._core.is_busy("x", True):
    pass
try:
    print("waiting")
    link.send_state_dict("x", {"w": np.ones(3)}, timeout=None)
except KeyboardInterrupt:
    print("interrupted")
    client.close()
"""


def test_ctrl_c_ends_a_wait_for_the_turn(threads: Bus, start_python: Start):
    worker = start_python(WAITER, threads.url, threads.namespace)
    assert worker.line() == "waiting"
    worker.signal(signal.SIGINT)
    assert worker.line(10) == "interrupted"


def test_a_forked_child_does_not_wait_for_a_thread_that_it_lacks(threads: Bus):
    (trainer,) = links(threads, "t", "e", [0])
    first = threading.Thread(
        target=lambda: caught(lambda: trainer.send_state_dict("x", state(1.0), timeout=3)),
        daemon=True,
    )
    first.start()
    eventually(lambda: is_sending(trainer, "x"), "the first to have its turn")
    other = state(2.0)  # torch's own threads do not survive a fork
    child = os.fork()
    if child == 0:
        told = caught(lambda: trainer.send_state_dict("x", other, timeout=None))
        os._exit(0 if isinstance(told, RuntimeError) else 1)
    begin = time.monotonic()
    ended = 0
    while not ended and time.monotonic() - begin < 10:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended, "the child waits"
    assert os.waitstatus_to_exitcode(status) == 0
    first.join(20)
