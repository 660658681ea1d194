"""One rank of a job that saves or loads: ``checkpoint_member.py save|load RANK SIZE PORT ID DIM``.

Each line of input is one save, or one load of that version (an empty line: of the newest).
"""

import os
import sys

import tensorbus.checkpoint
import torch
import torch.distributed as dist
from tensorbus.errors import PeerLostError
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

SIZES = {"a": (10, 7), "b": (3, 4, 5), "c": (1, 9)}


def whole(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {name: torch.randn(sizes, generator=generator) for name, sizes in SIZES.items()}


def state(version: int, mesh, dim: int) -> dict:
    full = whole(version)
    placement = Replicate() if dim < 0 else Shard(dim)
    sharded = {name: distribute_tensor(each, mesh, [placement]) for name, each in full.items()}
    return {"model": sharded, "plain": full["a"][0] * 2, "step": version, "name": f"v{version}"}


def save(checkpoint_id: str, mesh, dim: int) -> None:
    for version, _ in enumerate(sys.stdin, 1):
        print(tensorbus.checkpoint.save(state(version, mesh, dim), checkpoint_id, keep=2))


def load(checkpoint_id: str, mesh, dim: int) -> None:
    for line in sys.stdin:
        version = int(line) if line.strip() else None
        target = state(0, mesh, dim)
        try:
            got = tensorbus.checkpoint.load(target, checkpoint_id, version=version, timeout=20.0)
        except (PeerLostError, RuntimeError) as error:
            print(type(error).__name__, str(error).replace("\n", " "))
            continue
        expected = state(got, mesh, dim)
        same = all(
            torch.equal(target["model"][name].to_local(), expected["model"][name].to_local())
            for name in SIZES
        ) and torch.equal(target["plain"], expected["plain"])
        print(got, same, target["step"], target["name"])


if __name__ == "__main__":
    role, rank, size, port, checkpoint_id, dim = sys.argv[1:]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=int(rank), world_size=int(size))
    mesh = init_device_mesh("cpu", (int(size),))
    print("ready")
    (save if role == "save" else load)(checkpoint_id, mesh, int(dim))
    dist.destroy_process_group()
