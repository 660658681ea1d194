"""A trainer rank, of torchrun: learns the poem with FSDP2 and publishes after every step."""

import os
import statistics
import time
import warnings
from pathlib import Path

import reference
import tensorbus
import torch
import torch.distributed as dist
from events import end_with_parent, tell, telling
from model import CONTEXT, POEM, Policy, encode
from tensorbus.kvstore import KVStore, connect
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

BATCH = 16
SHELF_TYPE = torch.bfloat16  # what engines serve; half the memory of the shelf and of every pull


class Learner:
    """The policy, sharded over the ranks, and its optimiser."""

    def __init__(self, rank: int, size: int) -> None:
        torch.manual_seed(0)
        self.model = Policy()
        mesh = init_device_mesh("cpu", (size,))
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)  # parameters are DTensors now
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self._text = encode(POEM * 2)
        self._dice = torch.Generator().manual_seed(rank)  # every rank sees other lines

    def step(self) -> float:
        starts = torch.randint(0, len(POEM), (BATCH, 1), generator=self._dice)
        window = self._text[starts + torch.arange(CONTEXT + 1)]
        logits = self.model(window[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()

    def shards(self) -> dict[str, torch.Tensor]:
        """This rank's rows, as torch knows them."""
        return {name: each.to_local() for name, each in self.model.state_dict().items()}


def train(learner: Learner, link: tensorbus.Link, store: KVStore, folder: Path, rank: int) -> None:
    version = 0
    while version < last_version(store):
        with telling("step", version=version + 1) as told:
            told["loss"] = round(learner.step(), 3)
        version += 1
        reference.write(folder, version, rank, learner.shards())
        with telling("publish", version=version):
            link.publish(
                "policy",
                learner.model.state_dict(),
                version=version,
                dtype=SHELF_TYPE,
                on_full="withdraw",  # an engine that hangs in a pull holds nobody up
            )
    tell("copied", seconds=seconds_of_a_plain_copy(learner.shards()))


def last_version(store: KVStore) -> float:
    """When to stop, once run.py has said so; the same at all ranks."""
    last = torch.tensor(float("inf"))
    if dist.get_rank() == 0 and store.exists("last"):
        last = torch.tensor(float(store.get("last")))
    dist.broadcast(last, 0)
    return float(last)


def seconds_of_a_plain_copy(shards: dict[str, torch.Tensor]) -> float:
    """What torch needs to copy the same tensors to the same type: publish cannot take less."""
    copies = {name: shard.to(SHELF_TYPE) for name, shard in shards.items()}
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        for name, shard in shards.items():
            copies[name].copy_(shard)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    end_with_parent()
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # its output is only read
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ["LANE"] = f"trainer {rank}"
    learner = Learner(rank, size)
    # The agents are daemons: what was published last can be pulled when the trainers are gone.
    client, _ = tensorbus.bootstrap_client()
    with client, connect(os.environ["TENSORBUS_STORE"]) as store:
        link = client.link("trainer", expected_world_size=size)
        train(learner, link, store, Path(os.environ["REFERENCES"]), rank)
        link.close()  # the end of the stream: engines that wait for more are told
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
