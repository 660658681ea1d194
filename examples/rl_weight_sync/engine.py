"""An inference rank: takes every version and generates with it; two of them share the layers."""

import sys

import torch
from group import join, last_version, link, newest_of_all, tell
from model import Poet, generate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def main(side: str, size: int) -> None:
    join(side, size)
    model = Poet()
    if size > 1:
        # The wide layers are split: each rank holds half of their weights.
        mesh = init_device_mesh("cpu", (size,))
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    bus = link(side, "trainer", size)
    version = 0
    while version < last_version():
        version = bus.recv_state_dict("policy", model.state_dict(), timeout=60)
        # Ranks that join a running trainer may begin with different versions.
        if version < (newest := newest_of_all(version)):
            version = bus.recv_state_dict("policy", model.state_dict(), version=newest, timeout=60)
        tell("received", version=version)
        text = generate(model, "the ", 26)
        tell("generated", version=version, text=text.replace("\n", "/"))
    torch.distributed.barrier()
    bus.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
