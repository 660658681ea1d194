"""A trainer's half of an update, as vLLM's trainer engines are used.

>>> info = TensorBusTrainerInitInfo(store="tensorbus://host:29500", world_size=2, rank=rank)
>>> engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)
>>> version = engine.send_weights()          # on every trainer rank
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tensorbus.frameworks import load
from tensorbus.vllm.sending import EngineSender

_base = load(
    "tensorbus.vllm.trainer",
    "vllm.distributed.weight_transfer.base",
    "vLLM 0.28 to 0.32: pip install vllm",
)


@dataclass
class TensorBusTrainerInitInfo(_base.TrainerInitInfo):  # type: ignore[misc, name-defined]
    """``side`` names the engine, if there are several; ``dtype`` is what it serves."""

    backend: ClassVar[str] = "tensorbus"

    store: str | None = None
    world_size: int = 1
    name: str = "policy"
    side: str = "engine"
    dtype: Any = None
    bucket_bytes: int = 256 << 20
    depth: int = 2
    timeout: float = 60.0
    bind: str | None = None


class TensorBusTrainerEngine(_base.TrainerWeightTransferEngine):  # type: ignore[misc, name-defined]
    """Takes any of vLLM's ``WeightSource``."""

    init_info_cls = TensorBusTrainerInitInfo

    _sender: EngineSender

    @classmethod
    def trainer_init(
        cls, init_info: TensorBusTrainerInitInfo, *, client: Any, source: Any = None
    ) -> Self:
        if source is None:
            raise ValueError(
                "tensorbus sends what a WeightSource gives: source=ModuleSource(model)"
            )
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine._sender = EngineSender(
            client, init_info.store, name=init_info.name, side=init_info.side,
            rank=init_info.rank, world_size=init_info.world_size, dtype=init_info.dtype,
            bucket_bytes=init_info.bucket_bytes, depth=init_info.depth,
            timeout=init_info.timeout, bind=init_info.bind,
        )  # fmt: skip
        engine._sender.join()
        return engine

    def send_weights(self) -> int:
        """The version that the engine serves now."""
        return self._sender.send(iter(self.source))

    def shutdown(self) -> None:
        self._sender.close()
