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
        self._engine: Any = None  # vLLM's half of a trainer, in place of the sender

    def _source(self, kind: str, seed: int) -> TensorBusSource:
        return TensorBusSource(self._model(kind, seed), dtype=torch.bfloat16)

    def _model(self, kind: str, seed: int) -> torch.nn.Module:
        model = tiny_models.make(kind, seed)
        for layer in model.model.layers:
            fully_shard(layer, mesh=self._mesh)
        return fully_shard(model, mesh=self._mesh)

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

    def open_with_vllm(self, store: str, mode: str, server: str, kind: str, source: str) -> str:
        """As vLLM's own trainers are written; ``source`` is the class of the weights' source."""
        from tensorbus.vllm.trainer import TensorBusTrainerInitInfo
        from vllm.distributed.weight_transfer import (
            HTTPVLLMWeightSyncClient,
            WeightTransferTrainerFactory,
        )

        self.close()
        info = TensorBusTrainerInitInfo(
            store=store, world_size=self._ranks, rank=self._rank, dtype=torch.bfloat16, mode=mode,
            timeout=TIMEOUT,
        )  # fmt: skip
        self._engine = WeightTransferTrainerFactory.trainer_init(
            info, client=HTTPVLLMWeightSyncClient(server, timeout=TIMEOUT),
            source=self._source_of_vllm(source, kind, 0),
        )  # fmt: skip
        return type(self._engine).__name__

    def _source_of_vllm(self, source: str, kind: str, seed: int) -> Any:
        if source == "TensorBusSource":
            return self._source(kind, seed)
        from vllm.distributed.weight_transfer import ModuleSource

        return ModuleSource(self._model(kind, seed))

    def send(self, kind: str, seed: int) -> int:
        if self._engine is not None:
            source = type(self._engine.source).__name__
            self._engine.source = self._source_of_vllm(source, kind, seed)
            return self._engine.send_weights()
        assert self._sender is not None
        return self._sender.send(self._source(kind, seed).tensors())

    def close(self) -> str:
        if self._engine is not None:
            self._engine.shutdown()
        if self._sender is not None:
            self._sender.close()
        self._engine = self._sender = None
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
