"""A trainer rank: does what it is told, a line of JSON at a time.

python trainer_member.py RANK RANKS PORT
"""

import json
import sys
from typing import Any

import tiny_models
import torch
import torch.distributed as dist
from tensorbus.vllm.http import HttpClient
from tensorbus.vllm.sending import EngineSender
from tensorbus.vllm.source import TensorBusSource
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

TIMEOUT = 300.0


class Member:
    """Parameters in float32, sharded by FSDP2; engines serve bfloat16."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._mesh = init_device_mesh("cpu", (ranks,))
        self._sender: EngineSender | None = None

    def _source(self, kind: str, seed: int) -> TensorBusSource:
        model = tiny_models.make(kind, seed)
        for layer in model.model.layers:
            fully_shard(layer, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh)
        return TensorBusSource(model, dtype=torch.bfloat16)

    def open(self, store: str, mode: str, server: str | None, kind: str, **options: Any) -> str:
        """With an engine, or to publish for whoever comes."""
        self.close()
        source = self._source(kind, 0)
        self._sender = EngineSender(
            store, rank=self._rank, world_size=self._ranks, dtype=source.dtype, mode=mode,
            **{"timeout": TIMEOUT, **options},
        )  # fmt: skip
        if server is not None:
            self._sender.join(HttpClient(server, timeout=TIMEOUT), source.metadata())
        return "open"

    def send(self, kind: str, seed: int) -> int:
        assert self._sender is not None
        return self._sender.send(self._source(kind, seed).tensors())

    def close(self) -> str:
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        return "closed"


def main() -> None:
    rank, ranks, port = map(int, sys.argv[1:])
    store = dist.TCPStore("127.0.0.1", port, ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    member = Member(rank, ranks)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        call, arguments = json.loads(line)
        try:
            answer = getattr(member, call)(**arguments)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
