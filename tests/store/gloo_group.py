"""Run as a script: a gloo process group of four, met through the store at the given port.

The processes are forked after torch is imported, which is most of what starting one costs.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

WORLD_SIZE = 4


def work(rank: int, port: int) -> None:
    timeout = timedelta(seconds=30)
    store = dist.TCPStore("127.0.0.1", port, WORLD_SIZE, is_master=False, timeout=timeout)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("job", store),
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timeout,
    )
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert tensor.eq(sum(range(1, WORLD_SIZE + 1))).all(), tensor
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    port = int(sys.argv[1])
    children = []
    for rank in range(WORLD_SIZE):
        child = os.fork()
        if child == 0:
            try:
                work(rank, port)
            except BaseException as error:
                print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
