"""A worker's half of an update, inside of vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorbus import pool
from tensorbus.client import TensorBusClient
from tensorbus.frameworks import load
from tensorbus.vllm.agreement import Agreement
from tensorbus.vllm.intake import MODES, Intake, make_intake
from tensorbus.vllm.reload import Reload

_base = load(
    "tensorbus.vllm.engine",
    "vllm.distributed.weight_transfer.base",
    "vLLM 0.28 to 0.32",
    "vllm",
)


@dataclass
class TensorBusInitInfo(_base.WeightTransferInitInfo):  # type: ignore[misc, name-defined]
    """What ``EngineSender.join`` says. ``join`` is another one each time; names, types and shapes
    are for modes other than ``"staged"``."""

    store: str
    namespace: str | None = None
    name: str = "policy"
    sender: str = "trainer"
    side: str = "engine"
    join: str = ""
    mode: str = "staged"
    verify: str = "off"
    names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    timeout: float = 60.0
    bind: str | None = None


@dataclass
class TensorBusUpdateInfo(_base.WeightTransferUpdateInfo):  # type: ignore[misc, name-defined]
    """Without a version: the newest."""

    version: int | None = None


_PATIENCE = 30.0
_nothing = contextlib.nullcontext


class TensorBusEngine(_base.WeightTransferEngine):  # type: ignore[misc, name-defined]
    """Pulls what a trainer has published, and loads it.

    In mode ``"staged"`` no model is touched before all workers have everything: a transfer that
    fails leaves what is served. In the others a pull writes to the model; when one fails, the
    models of all workers refuse to compute until the next has succeeded.
    """

    init_info_cls = TensorBusInitInfo
    update_info_cls = TensorBusUpdateInfo
    supports_draft_weight_update = False

    _client: TensorBusClient | None = None
    _intake: Intake | None = None
    _agreement: Agreement | None = None
    _reload: Reload | None = None
    _timeout = 60.0
    _refusal: Any = None

    def init_transfer_engine(self, init_info: TensorBusInitInfo) -> None:
        self.shutdown()
        self._check(init_info)
        self._timeout = init_info.timeout
        self._client = TensorBusClient.embedded(
            init_info.store, namespace=init_info.namespace, bind=init_info.bind
        )
        try:
            self._intake = self._make_intake(init_info, self._client)
        except BaseException:
            self.shutdown()
            raise

    def start_weight_update(self) -> None:
        """The model is not touched before everything is there."""
        self._reload = None

    # vLLM's own synchronises an accelerator, which a CPU has not.
    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        _synchronize(self.device)

    def receive_weights(self, update_info: TensorBusUpdateInfo) -> None:
        if self._intake is None or self._agreement is None:
            raise RuntimeError("tensorbus: init_weight_transfer_engine comes before updates")
        if self._reload is not None:
            raise RuntimeError("tensorbus: an update comes in one piece, and this one has come")
        try:
            with self._undefined_if_it_fails() if self._intake.in_place else _nothing():
                tensors = self._pull(self._intake, self._agreement, update_info.version)
        except Exception:
            if self._agreement.tells:
                raise
            return
        with self._undefined_if_it_fails():
            reload = Reload(self.model, self.model_config)
            reload.load(tensors)
            self._reload = reload

    def _pull(
        self, intake: Intake, agreement: Agreement, version: int | None
    ) -> dict[str, Any]:  # fmt: skip
        """At all workers or at none."""
        tensors: dict[str, Any] = {}
        failure: Exception | None = None
        try:
            tensors = intake.pull(version, self._timeout)
        except Exception as error:
            failure = error
        own = "" if failure is None else f"{type(failure).__name__}: {failure}"
        # Others may wait for all of their time before they know.
        failures = agreement.failures(own, self._timeout + _PATIENCE)
        if failure is not None:
            raise failure
        if failures:
            raise RuntimeError(f"tensorbus: nothing was loaded, since {'; '.join(failures)}")
        return tensors

    def finish_weight_update(self) -> None:
        reload, self._reload = self._reload, None
        if reload is not None:
            with self._undefined_if_it_fails():
                reload.finish()

    def shutdown(self) -> None:
        client, self._client, self._intake = self._client, None, None
        agreement, self._agreement = self._agreement, None
        if agreement is not None:
            agreement.close()
        if client is not None:
            client.close()

    def _check(self, info: TensorBusInitInfo) -> None:
        if info.mode not in MODES:
            raise ValueError(f"tensorbus: mode is {', '.join(MODES)}, not {info.mode!r:.100}")
        if info.mode == "direct" and getattr(self.parallel_config, "enable_eplb", False):
            raise ValueError(
                "tensorbus: mode direct does not go with EPLB (enable_eplb), which moves experts "
                "to other places; mode staged does"
            )
        if info.mode != "staged" and not info.names:
            raise ValueError(f"tensorbus: mode {info.mode} needs names, dtype_names and shapes")

    def _make_intake(self, info: TensorBusInitInfo, client: TensorBusClient) -> Intake:
        parallel = self.parallel_config
        # Each replica of an engine updates for itself; `instance_id` tells engines apart that were
        # told the same, and `join` what a worker was before it was told again.
        replica = f"{info.side}-{self.vllm_config.instance_id}-{parallel.data_parallel_index}"
        own = f"{replica}-{info.join}"
        link = client.link(own, info.sender, parallel.world_size, verify=info.verify)
        self._agreement = Agreement(
            info.store, info.namespace, own, parallel.rank, parallel.world_size
        )
        described = {
            name: (tuple(shape), pool.dtype_of(dtype))
            for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True)
        }
        with _config_of(self.vllm_config):
            return make_intake(link, info.name, self.model, info.mode, described, self.device)

    @contextlib.contextmanager
    def _undefined_if_it_fails(self) -> Iterator[None]:
        """While the model is written to, and until somebody has done so successfully."""
        if self._refusal is None:
            self._refusal = self.model.register_forward_pre_hook(_refuse)
        yield
        self._refusal.remove()
        self._refusal = None


def _refuse(*_: Any) -> None:
    raise RuntimeError(
        "tensorbus: the last update of this model has failed in the middle, so its weights are "
        "undefined; pause generation before updates, and resume it after one that succeeded"
    )


def _config_of(vllm_config: Any) -> contextlib.AbstractContextManager[Any]:
    """Loaders of some models ask for it."""
    from vllm.config import set_current_vllm_config

    context: contextlib.AbstractContextManager[Any] = set_current_vllm_config(vllm_config)
    return context


def _synchronize(device: Any) -> None:
    if getattr(device, "type", "cpu") != "cpu":
        import torch

        torch.accelerator.synchronize()
