"""A trainer rank: learns the poem with its weights sharded, and sends them every few steps."""

import warnings

import torch
from group import join, last_version, link, tell
from model import CONTEXT, POEM, Poet, encode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

RANKS = 2
STEPS_PER_VERSION = 20


def main() -> None:
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # its output is only read
    rank = join("trainer", RANKS)
    torch.manual_seed(0)
    model = Poet()
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # parameters are DTensors now, sharded over the ranks
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = encode(POEM * 2)
    dice = torch.Generator().manual_seed(rank)  # every rank sees other lines
    bus = link("trainer", "solo", RANKS)
    version = 0
    while version < last_version():
        for _ in range(STEPS_PER_VERSION):
            starts = torch.randint(0, len(POEM), (16, 1), generator=dice)
            window = text[starts + torch.arange(CONTEXT + 1)]
            logits = model(window[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        tell("trained", loss=round(loss.item(), 3))
        version = bus.send_state_dict("policy", model.state_dict(), allow_lost=True, timeout=60)
        tell("sent", version=version, has=bus.versions("policy"))
    torch.distributed.barrier()
    bus.close()


if __name__ == "__main__":
    main()
