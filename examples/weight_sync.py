"""A rank of a trainer that publishes its weights after every step, or of an engine that pulls them.

Two trainer ranks hold rows in float32. The two ranks of an engine are tensor parallel, in bfloat16:
fused projections cut by head, the others by rows or columns. `examples/demo.py` starts them all.

    export TENSORBUS_STORE=tensorbus://127.0.0.1:29500
    AGENT_RANK=0 python examples/weight_sync.py trainer 0
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tensorbus
import torch
from tensorbus import Part, Sharded, TensorBusClient
from tensorbus.kvstore import KVStore, connect

RANKS = 2  # of each side
LAYERS, HIDDEN, KV, INNER, WORDS = 4, 1024, 256, 3072, 8192
STEP = 8.0  # what training adds to every weight
STEP_TIME = 0.5
PACES = (0.6, 0.8)  # seconds that an engine rank generates with a version
# A rank goes on while the other one is dead, and is timed alone.
EACH_FOR_ITSELF: dict[str, Any] = {"together": False}

SHAPES: dict[str, tuple[int, ...]] = {"embed.weight": (WORDS, HIDDEN), "norm.weight": (HIDDEN,)}
for layer in range(LAYERS):
    SHAPES |= {
        f"layers.{layer}.{name}.weight": shape
        for name, shape in {
            "q_proj": (HIDDEN, HIDDEN),
            "k_proj": (KV, HIDDEN),
            "v_proj": (KV, HIDDEN),
            "o_proj": (HIDDEN, HIDDEN),
            "gate_proj": (INNER, HIDDEN),
            "up_proj": (INNER, HIDDEN),
            "down_proj": (HIDDEN, INNER),
        }.items()
    }
FUSED = {
    "*.qkv_proj.weight": [("q_proj", HIDDEN), ("k_proj", KV), ("v_proj", KV)],
    "*.gate_up_proj.weight": [("gate_proj", INNER), ("up_proj", INNER)],
}


def box(name: str, start: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    """What a box of a tensor holds before the first step: every element another number."""
    number = torch.full(shape, list(SHAPES).index(name))
    for dim, (begin, size) in enumerate(zip(start, shape, strict=True)):
        index = torch.arange(begin, begin + size) * (7919, 104729)[dim]
        number += index.view([-1 if each == dim else 1 for each in range(len(shape))])
    return (number % 65521).float() / 64


def end_with_parent() -> None:
    """The demo holds the other end of our standard input: it is closed by whatever ends it."""

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def tell(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, "rank": int(sys.argv[2]), **more}), flush=True)


def last_version(store: KVStore) -> float:
    """When to stop, once the demo has said so."""
    return float(store.get("last")) if store.exists("last") else float("inf")


def trainer(client: TensorBusClient, store: KVStore, rank: int) -> None:
    weights = {}
    for name, (rows, *rest) in SHAPES.items():
        start, shape = (rank * rows // RANKS, *(0 for _ in rest)), (rows // RANKS, *rest)
        weights[name] = Sharded(box(name, start, shape), f"{RANKS}:S0", rank)
    link = client.link("trainer", expected_world_size=RANKS)
    version = 0
    while version < last_version(store):
        for weight in weights.values():
            weight.tensor.add_(STEP)  # stands for training
        begin = time.perf_counter()
        version = link.publish("policy", weights, dtype=torch.bfloat16, on_full="withdraw")
        tell("published", version=version, seconds=time.perf_counter() - begin)
        time.sleep(STEP_TIME)  # an accelerator would be at work now
    store.wait_for_key("end", timeout=60)  # what is published ends with this process


def engine_tensors(rank: int) -> dict[str, Any]:
    """Plain tensors of this rank, under the trainers' names."""
    fused_rows = {"qkv_proj": HIDDEN + 2 * KV, "gate_up_proj": 2 * INNER}
    state = {
        f"layers.{layer}.{name}.weight": torch.zeros(rows // RANKS, HIDDEN, dtype=torch.bfloat16)
        for layer in range(LAYERS)
        for name, rows in fused_rows.items()
    }
    views = tensorbus.fused(state, FUSED, rank=rank, size=RANKS)
    for name, (rows, *columns) in SHAPES.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            part = torch.zeros(rows, columns[0] // RANKS, dtype=torch.bfloat16)
            views[name] = Sharded(part, f"{RANKS}:S1", rank)
        elif name == "embed.weight":
            part = torch.zeros(rows // RANKS, HIDDEN, dtype=torch.bfloat16)
            views[name] = Sharded(part, f"{RANKS}:S0", rank)
        elif name not in views:
            views[name] = torch.zeros(rows, dtype=torch.bfloat16)
    return views


def parts_of(views: Mapping[str, Any]) -> Iterator[tuple[str, Part]]:
    for name, view in views.items():
        if isinstance(view, Sharded):
            yield from ((name, part) for part in view.parts())
        else:
            yield name, view if isinstance(view, Part) else Part(view, view.shape, (0,))


class Check:
    """What training gives, computed here, for every element that this rank holds."""

    def __init__(self, views: Mapping[str, Any]) -> None:
        self._parts = list(parts_of(views))
        self._begun = [
            box(name, part.start, tuple(part.tensor.shape)) for name, part in self._parts
        ]
        self.bytes = sum(part.tensor.nbytes for _, part in self._parts)
        self._copied = [torch.ones(self.bytes // 2, dtype=torch.bfloat16) for _ in range(2)]

    def __call__(self, version: int) -> None:
        for (name, part), begun in zip(self._parts, self._begun, strict=True):
            if not torch.equal(part.tensor, (begun + STEP * version).to(torch.bfloat16)):
                raise SystemExit(f'version {version}: "{name}" is wrong')

    def seconds_of_a_plain_copy(self) -> float:
        """Of as many bytes, in one thread as a pull, from warm memory to warm memory."""
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            self._copied[0].copy_(self._copied[1])
            times.append(time.perf_counter() - begin)
        return min(times)


def engine(client: TensorBusClient, store: KVStore, rank: int) -> None:
    views = engine_tensors(rank)
    check = Check(views)
    link = client.link("engine", "trainer", RANKS)
    version = None
    while version is None or version < last_version(store):
        # If a newer version is there the pull does not wait, and its time is that of the bytes.
        ready = version is not None and link.newest("policy") > version
        before = version or 0
        begin = time.perf_counter()
        version = link.pull("policy", views, newer_than=version, timeout=60, **EACH_FOR_ITSELF)
        seconds = time.perf_counter() - begin
        copy = check.seconds_of_a_plain_copy()
        check(version)
        tell("pulled", version=version, skipped=version - before - 1, seconds=seconds, ready=ready,
             copy=copy, bytes=check.bytes)  # fmt: skip
        time.sleep(PACES[rank])  # stands for generating


def main() -> None:
    role, rank = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    if "ENDS_WITH_ITS_INPUT" in os.environ:
        end_with_parent()
    with TensorBusClient.embedded() as client, connect(os.environ["TENSORBUS_STORE"]) as store:
        (trainer if role == "trainer" else engine)(client, store, rank)


if __name__ == "__main__":
    main()
