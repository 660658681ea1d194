"""A worker's half of an update, inside of vLLM."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from tensorbus.frameworks import load
from tensorbus.streams.receiver import Receiver

_base = load(
    "tensorbus.vllm.engine",
    "vllm.distributed.weight_transfer.base",
    "vLLM 0.28 to 0.32: pip install vllm",
)


@dataclass
class TensorBusInitInfo(_base.WeightTransferInitInfo):  # type: ignore[misc, name-defined]
    """What ``EngineSender.join`` says."""

    store: str
    stream: str
    side: str = "engine"
    timeout: float = 60.0
    bind: str | None = None


@dataclass
class TensorBusUpdateInfo(_base.WeightTransferUpdateInfo):  # type: ignore[misc, name-defined]
    """Without a version: the next."""

    version: int | None = None


class TensorBusEngine(_base.WeightTransferEngine):  # type: ignore[misc, name-defined]
    """Receives everything, then loads it: a transfer that fails leaves the model as it was."""

    init_info_cls = TensorBusInitInfo
    update_info_cls = TensorBusUpdateInfo
    supports_draft_weight_update = False

    _receiver: Receiver | None = None
    _has_loaded = False

    def init_transfer_engine(self, init_info: TensorBusInitInfo) -> None:
        self.shutdown()
        self._receiver = Receiver(
            init_info.store, init_info.stream, f"{init_info.side}.{self._rank()}",
            timeout=init_info.timeout, bind=init_info.bind,
        )  # fmt: skip

    def start_weight_update(self) -> None:
        """The model is not touched before everything is there."""
        self._has_loaded = False

    # vLLM's own synchronises an accelerator, which a CPU has not.
    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        _synchronize(self.device)

    def receive_weights(self, update_info: TensorBusUpdateInfo) -> None:
        if self._receiver is None:
            raise RuntimeError("tensorbus: init_weight_transfer_engine comes before updates")
        if self._has_loaded:
            raise RuntimeError("tensorbus: an update comes in one piece, and this one has come")
        weights = list(self._receiver.receive(update_info.version))
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._has_loaded = True
        initialize_layerwise_reload(self.model)
        with _checks_of_drafts_off():
            self.model.load_weights(_emptied(weights))

    def finish_weight_update(self) -> None:
        if not self._has_loaded:
            return
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        self._has_loaded = False
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def _rank(self) -> int:
        """Among all workers of the engine."""
        parallel = self.parallel_config
        return int(parallel.data_parallel_index * parallel.world_size + parallel.rank)


def _emptied(weights: list[tuple[str, Any]]) -> Any:
    """A tensor that the model has loaded is not kept."""
    while weights:
        yield weights.pop(0)


def _synchronize(device: Any) -> None:
    if getattr(device, "type", "cpu") != "cpu":
        import torch

        torch.accelerator.synchronize()


def _checks_of_drafts_off() -> contextlib.AbstractContextManager[Any]:
    """As vLLM's own engines: an update need not have the weights of draft layers."""
    try:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
    except ImportError:  # of a vLLM that checks nothing
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = disable_mtp_completeness_check()
    return context
