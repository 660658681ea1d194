"""A trainer's half of an update, as vLLM's trainer engines are used.

>>> info = TensorBusTrainerInitInfo(store="tensorbus://host:29500", world_size=2, rank=rank)
>>> source = TensorBusSource(model, dtype=torch.bfloat16)
>>> engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)
>>> version = engine.send_weights()          # on every trainer rank
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tensorbus.frameworks import load
from tensorbus.vllm.sending import Client, EngineSender
from tensorbus.vllm.source import TensorBusSource

if TYPE_CHECKING:
    from typing_extensions import Self

_base, _factory = (
    load("tensorbus.vllm.trainer", f"vllm.distributed.weight_transfer.{module}",
         "vLLM 0.28 to 0.32", "vllm")
    for module in ("base", "factory")
)  # fmt: skip


@dataclass
class TensorBusTrainerInitInfo(_base.TrainerInitInfo):  # type: ignore[misc, name-defined]
    """As the arguments of ``EngineSender``; ``world_size`` are the trainer ranks."""

    backend: ClassVar[str] = "tensorbus"

    store: str | None = None
    world_size: int = 1
    namespace: str | None = None
    name: str = "policy"
    sender: str = "trainer"
    dtype: Any = None
    mode: str = "staged"
    verify: str = "off"
    keep: int = 2
    timeout: float = 60.0
    bind: str | None = None


class TensorBusTrainerEngine(_base.TrainerWeightTransferEngine):  # type: ignore[misc, name-defined]
    """Sends the shards of a ``TensorBusSource``, or the whole tensors of any of vLLM's
    ``WeightSource``, of which each rank sends its share."""

    init_info_cls = TensorBusTrainerInitInfo

    _sender: EngineSender

    @classmethod
    def trainer_init(
        cls, init_info: TensorBusTrainerInitInfo, *, client: Any, source: Any = None
    ) -> Self:
        if source is None:
            raise ValueError(
                "tensorbus sends what a source gives: source=tensorbus.vllm.source."
                "TensorBusSource(model), or any WeightSource"
            )
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine._sender = EngineSender(
            init_info.store, namespace=init_info.namespace, name=init_info.name,
            sender=init_info.sender, rank=init_info.rank, world_size=init_info.world_size,
            dtype=init_info.dtype or getattr(source, "dtype", None), mode=init_info.mode,
            verify=init_info.verify, keep=init_info.keep, timeout=init_info.timeout,
            bind=init_info.bind,
        )  # fmt: skip
        try:
            engine.join(client)
        except BaseException:
            engine.shutdown()
            raise
        return engine

    def join(self, client: Client, *, side: str = "engine") -> None:
        """One more engine, on rank 0; it is updated from the next ``send_weights`` on."""
        if self.is_sender:
            self._sender.join(client, self.source.metadata(), side=side)

    def leave(self, client: Client) -> None:
        self._sender.leave(client)

    def send_weights(self) -> int:
        """The version that the engines serve now."""
        own = isinstance(self.source, TensorBusSource)
        return self._sender.send(self.source.tensors() if own else iter(self.source))

    def shutdown(self) -> None:
        self._sender.close()


# vLLM calls entry points where engines are, and a trainer is no engine.
_trainers = _factory.WeightTransferTrainerFactory
if "tensorbus" not in _trainers._registry:
    _trainers.register_engine("tensorbus", __name__, TensorBusTrainerEngine.__name__)
