"""An engine rank: pulls the newest version when it likes, and generates with it.

python engine.py NAME RANK SIZE LETTERS
"""

import os
import sys
from pathlib import Path

import reference
import torch
import torch.distributed as dist
from events import end_with_parent, tell, telling
from served_model import ServedModel
from tensorbus import EndOfStreamError, Link, TensorBusClient

PATIENCE = 120.0


def pull(link: Link, views: dict[str, object], has: int | None) -> int:
    """All ranks of an engine call it, and all get the same version."""
    # If a newer version is there the pull does not wait: its time is that of the bytes.
    ready = has is not None and link.newest("policy") > has
    with telling("pull", first=has is None, ready=ready) as told:
        told["version"] = link.pull("policy", views, newer_than=has, timeout=PATIENCE)
    return told["version"]


def join(name: str, rank: int, size: int) -> None:
    """A gloo group of this engine's ranks, through torch's protocol on the same store."""
    host, port = os.environ["TENSORBUS_STORE"].removeprefix("tensorbus://").split(":")
    store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=size)


def serve(link: Link, model: ServedModel, letters: int) -> None:
    folder = Path(os.environ["REFERENCES"])
    views = model.views()
    version = None
    while True:
        version = pull(link, views, version)
        compared = reference.compare(folder, version, model.weights, model.rank, model.size)
        tell("verified", version=version, bytes=compared)
        with telling("generate", version=version) as told:
            told["text"] = model.generate("the ", letters)
            told["newest"] = link.newest("policy")


def main(name: str, rank: int, size: int, letters: int) -> None:
    end_with_parent()
    torch.set_num_threads(1)
    if size > 1:
        join(name, rank, size)
    with TensorBusClient.embedded() as client:
        link = client.link(name, "trainer", size)
        try:
            serve(link, ServedModel(rank, size), letters)
        except EndOfStreamError:
            link.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
