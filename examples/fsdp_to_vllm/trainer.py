"""A trainer rank, of torchrun: learns the poem with FSDP2, and has the engine serve each version.

What it is told, and tells, is in the store: `engine` is the URL of the engine, `last` the version
after which it ends.
"""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist
from language import batch, configuration
from tensorbus.kvstore import KVStore, connect
from tensorbus.vllm.http import HttpClient
from tensorbus.vllm.sending import EngineSender
from tensorbus.vllm.source import TensorBusSource
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from transformers import LlamaForCausalLM

STEPS = 8  # for a version
UPDATE_TIME = 300.0
STARTING_TIME = 1800.0  # of the engine


class Learner:
    def __init__(self, rank: int, ranks: int) -> None:
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(configuration()).float()
        mesh = init_device_mesh("cpu", (ranks,))
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)  # parameters are DTensors now
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self._dice = torch.Generator().manual_seed(rank)

    def learn(self) -> float:
        for _ in range(STEPS):
            window = batch(self._dice)
            logits = self.model(window[:, :-1]).logits
            loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss.item()


class Teller:
    """Rank 0 reads and writes the store, the others hear from it."""

    def __init__(self, store: KVStore, rank: int) -> None:
        self._store, self._rank = store, rank

    def last_version(self) -> float:
        last = torch.tensor(float("inf"))
        if self._rank == 0 and self._store.exists("last"):
            last = torch.tensor(float(self._store.get("last")))
        dist.broadcast(last, 0)
        return float(last)

    def engine(self) -> str | None:
        known = self._rank == 0 and self._store.exists("engine")
        return self._store.get("engine").decode() if known else None

    def wait_for_engine(self) -> None:
        if self._rank == 0:
            self._store.wait_for_key("engine", timeout=STARTING_TIME)
        dist.barrier()

    def tell(self, version: int, **said: object) -> None:
        if self._rank == 0:
            self._store.set(f"versions/{version}", json.dumps({"version": version, **said}))


class Serving:
    """The engine that the trainer updates, whichever that is now."""

    def __init__(self, sender: EngineSender) -> None:
        self._sender = sender
        self._engine: HttpClient | None = None

    def look_for(self, url: str | None) -> None:
        if url is None or (self._engine is not None and self._engine.server_url == url):
            return
        if self._engine is not None:
            self._sender.leave(self._engine)
        self._engine = HttpClient(url, timeout=UPDATE_TIME)
        self._sender.join(self._engine)

    def send(self, tensors: dict[str, torch.Tensor], version: int) -> bool:
        """Whether the engine serves it now; if it is away the version is on the shelf."""
        try:
            sent = self._sender.send(tensors)
        except (ConnectionError, RuntimeError):
            return False
        assert sent == version
        return self._engine is not None


def train(learner: Learner, teller: Teller, serving: Serving) -> None:
    source = TensorBusSource(learner.model, dtype=torch.bfloat16)
    version = 1
    serving.send(source.tensors(), version)  # what the engine starts with: nothing is learned yet
    teller.tell(version, loss=float("inf"), seconds=0.0, served=False)
    teller.wait_for_engine()
    while version < teller.last_version():
        loss = learner.learn()
        serving.look_for(teller.engine())
        version += 1
        began = time.perf_counter()
        served = serving.send(source.tensors(), version)
        seconds = time.perf_counter() - began
        teller.tell(version, loss=round(loss, 3), seconds=round(seconds, 3), served=served)


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    with (
        connect(os.environ["TENSORBUS_STORE"]) as store,
        EngineSender(rank=rank, world_size=ranks, timeout=UPDATE_TIME) as sender,
    ):
        train(Learner(rank, ranks), Teller(store, rank), Serving(sender))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
