"""What trainers and engines share: their process group, their link, and telling what happens."""

import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from tensorbus import Link, TensorBusClient
from tensorbus.kvstore import connect

STORE = os.environ.get("TENSORBUS_STORE", "")


def join(side: str, size: int) -> int:
    """A gloo group of this side's ranks, through torch's protocol on the same store; our rank."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    host, port = STORE.removeprefix("tensorbus://").split(":")
    store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    started = os.environ["STARTED"]  # a restarted group has keys of its own
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"{side}-{started}", store), rank=rank, world_size=size
    )
    return rank


def link(side: str, remote: str, size: int) -> Link:
    client = TensorBusClient.embedded(STORE, int(os.environ["AGENT_RANK"]))
    return client.link(side, remote, size)


def newest_of_all(version: int) -> int:
    """The newest version that a rank of this side has."""
    newest = torch.tensor(version)
    dist.all_reduce(newest, dist.ReduceOp.MAX)
    return int(newest)


def last_version() -> float:
    """When to stop, once run.py has said so. All ranks of a side get the same answer."""
    last = torch.tensor(float("inf"))
    if dist.get_rank() == 0:
        with connect(STORE) as store:
            if store.exists("last"):
                last = torch.tensor(float(store.get("last")))
    dist.broadcast(last, 0)
    return float(last)


def tell(event: str, **more: Any) -> None:
    """One line for run.py."""
    line = {"time": time.time(), "rank": int(os.environ["AGENT_RANK"]), "event": event, **more}
    print(json.dumps(line), flush=True)
