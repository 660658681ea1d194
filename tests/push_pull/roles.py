"""What nodes are told to do. These functions run in the nodes' processes."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorbus
import torch
from tensorbus import fserver
from torch_oracle import CONVERTIBLE, COPY_ONLY

# Not bool, of which few bytes are values; torch does next to nothing with the last.
DTYPES = [dtype for dtype in CONVERTIBLE if dtype != torch.bool] + COPY_ONLY[:-1]


def init() -> None:
    torch.set_num_threads(1)
    fserver.init()


def stop(timeout: float | None = None) -> None:
    if timeout is not None:
        fserver._timeout = timeout
    fserver.stop()


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Any function of the module."""
    return getattr(fserver, name)(*arguments, **options)


def node() -> Any:
    return fserver._worker or fserver._server


def servers() -> int:
    return int(os.environ["DMLC_NUM_SERVER"])


def group() -> int:
    return int(os.environ["DMLC_NODE_RANK"])


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Not contiguous(): a single element with a stride of 2 is contiguous, but cannot be viewed.
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return dense.reshape(-1).view(torch.uint8)


def marked(tensor: torch.Tensor, mark: int) -> torch.Tensor:
    """The same shape and type, every byte greater by `mark`."""
    return (as_bytes(tensor) + mark).view(tensor.dtype).reshape(tensor.shape)


def serve(steps: int, timeout_ms: float = 30_000, workers: list[int] | None = None) -> int:
    """Answers each push of so many batches with itself, marked by this server's group."""
    answered = 0
    for _ in range(steps):
        for batch in fserver.get_batch(timeout_ms, workers):
            fserver.respond([marked(tensor, group()) for tensor in batch.tensors], batch.handler)
            answered += 1
    return answered


def serve_each(requests: int) -> None:
    """The same for workers that do not keep step."""
    workers = list(range(int(os.environ["DMLC_NUM_WORKER"])))
    while requests > 0:
        for worker in list(workers):
            try:
                requests -= serve(1, 2, [worker])
            except TimeoutError:
                continue


def random_tensor(rng: random.Random, pooled: bool = False) -> torch.Tensor:
    """Of any type, shape and stride, with any bytes."""
    dtype = rng.choice(DTYPES)
    shape = [
        rng.choice([0, 1, 1, 2, 3, 5]) if rng.random() < 0.9 else 16
        for _ in range(rng.randrange(10))
    ]
    if rng.random() < 0.05:
        shape = [rng.randrange(200_000)]
    while math.prod(shape) > 20_000 and len(shape) > 1:
        shape.pop()
    count = math.prod(shape)
    size = torch.empty(0, dtype=dtype).element_size()
    flat = (
        tensorbus.empty([2 * count], dtype=dtype) if pooled else torch.empty(2 * count, dtype=dtype)
    )
    flat.view(torch.uint8).copy_(torch.randint(0, 256, (2 * count * size,), dtype=torch.uint8))
    kind = rng.randrange(3)
    if kind == 0:
        return flat[:count].reshape(shape)
    if kind == 1:
        return flat[::2].reshape(shape) if count == 0 else flat[::2].view(shape)
    order = list(range(len(shape)))
    rng.shuffle(order)
    dense = flat[:count].reshape([shape[dim] for dim in order])
    return dense.permute([order.index(dim) for dim in range(len(shape))])


class Flight:
    """A request under way, and what must come back."""

    def __init__(self, rng: random.Random) -> None:
        pushes = [random_tensor(rng) for _ in range(rng.randrange(1, 4))]
        self.pulls = []
        self.expected = []
        for server in range(servers()):
            for push in pushes:
                if rng.random() < 0.3:
                    pull = tensorbus.empty(list(push.shape), dtype=push.dtype)
                elif rng.random() < 0.3:
                    pull = torch.empty_like(push)  # keeps strides
                else:
                    pull = torch.empty(push.shape, dtype=push.dtype)
                self.pulls.append(pull)
                self.expected.append(as_bytes(push) + server)
        keys = [rng.randrange(6) for _ in pushes]
        self.handler = fserver.push_pull(pushes, keys, self.pulls, range(len(self.pulls)))
        for push in pushes:
            push.zero_()  # it may be changed at once

    def land(self) -> None:
        fserver.wait(self.handler, 30_000)
        for pull, expected in zip(self.pulls, self.expected, strict=True):
            assert torch.equal(as_bytes(pull), expected), (pull.dtype, pull.shape)


def ask_at_random(requests: int, seed: int, depth: int) -> int:
    """So many requests, up to `depth` of them under way; every byte is checked."""
    rng = random.Random(seed)
    flights: deque[Flight] = deque()
    for _ in range(requests):
        flights.append(Flight(rng))
        while len(flights) > rng.randrange(depth):
            flights.popleft().land()
    while flights:
        flights.popleft().land()
    return int(node().counts()["requests"])


def echo(elements: int = 16, key: int = 1, timeout_ms: float = 30_000) -> None:
    """One request of float32 there and back."""
    push = torch.rand(elements)
    pulls = [torch.empty(elements) for _ in range(servers())]
    fserver.wait(fserver.push_pull([push], [key], pulls, range(servers())), timeout_ms)
    for server, pull in enumerate(pulls):
        assert torch.equal(as_bytes(pull), as_bytes(push) + server)


def echo_many(times: int, elements: int = 16) -> None:
    for _ in range(times):
        echo(elements)


def seconds_until_error(name: str, *arguments: Any) -> tuple[float, list[str], str]:
    """How long a call took to raise, and what."""
    start = time.monotonic()
    try:
        getattr(fserver, name)(*arguments)
    except Exception as error:
        kinds = [base.__name__ for base in type(error).__mro__]
        return time.monotonic() - start, kinds, str(error)
    raise AssertionError(f"{name} raised nothing")


def push(elements: int = 16, pooled: bool = False, pull: bool = True, fill: float = 0.0) -> int:
    """Begins a request, whose pull tensors are kept for `pulled`."""
    global kept
    kept = []
    if pull:
        for _ in range(servers()):
            tensor = tensorbus.empty([elements]) if pooled else torch.empty(elements)
            kept.append(tensor.fill_(fill))
    return fserver.push_pull([torch.rand(elements)], [1], kept, range(len(kept)))


kept: list[torch.Tensor] = []


def pulled() -> list[list[float]]:
    return [tensor.tolist() for tensor in kept]


def interruptible(entered: str, function: Callable[..., Any], *arguments: Any) -> str:
    """Runs a call that blocks and says what ended it; the main thread is the one that calls."""
    assert threading.current_thread() is threading.main_thread()
    try:
        Path(entered).touch()
        function(*arguments)
    except KeyboardInterrupt:
        return "interrupted"
    return "returned"
