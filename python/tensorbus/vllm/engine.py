"""A worker's half of an update, inside of vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

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


_T = TypeVar("_T")
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

    def parse_init_info(self, init_dict: dict[str, Any]) -> TensorBusInitInfo | None:
        """None at a worker that does not tell what was refused."""
        try:
            info: TensorBusInitInfo = super().parse_init_info(init_dict)
        except ValueError:
            if self._tells:
                raise
            return None
        return info

    def init_transfer_engine(self, init_info: TensorBusInitInfo | None) -> None:
        """At all workers or at none."""
        self.shutdown()
        if init_info is None:
            return
        self._timeout = init_info.timeout
        try:
            self._agreement = self._make_agreement(init_info)
            self._agreed(self._agreement, lambda: self._open(init_info), "nothing was set up")
        except Exception:
            self._close_client()  # not the agreement: others may not have heard of this yet
            if self._tells:
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
            if not self._tells:
                return
            raise RuntimeError("tensorbus: init_weight_transfer_engine comes before updates")
        if self._reload is not None:
            raise RuntimeError("tensorbus: an update comes in one piece, and this one has come")
        try:
            with self._undefined_if_it_fails() if self._intake.in_place else _nothing():
                tensors = self._pull(self._intake, self._agreement, update_info.version)
        except Exception:
            if self._tells:
                raise
            return
        with self._undefined_if_it_fails():
            reload = Reload(self.model, self.model_config)
            reload.load(tensors)
            self._reload = reload

    def _pull(
        self, intake: Intake, agreement: Agreement, version: int | None
    ) -> dict[str, Any]:  # fmt: skip
        return self._agreed(
            agreement, lambda: intake.pull(version, self._timeout), "nothing was loaded"
        )

    def _agreed(self, agreement: Agreement, work: Callable[[], _T], nothing: str) -> _T:
        """What ``work`` returns, if it succeeds at all workers."""
        failure: Exception | None = None
        try:
            done = work()
        except Exception as error:
            failure = error
        own = "" if failure is None else f"{type(failure).__name__}: {failure}"
        # Others may wait for all of their time before they know.
        failures = agreement.failures(own, self._timeout + _PATIENCE)
        if failure is not None:
            raise failure
        if failures:
            raise RuntimeError(f"tensorbus: {nothing}, since {'; '.join(failures)}")
        return done

    def finish_weight_update(self) -> None:
        reload, self._reload = self._reload, None
        if reload is not None:
            with self._undefined_if_it_fails():
                reload.finish()

    def shutdown(self) -> None:
        agreement, self._agreement = self._agreement, None
        if agreement is not None:
            agreement.close()
        self._close_client()

    def _close_client(self) -> None:
        client, self._client, self._intake = self._client, None, None
        if client is not None:
            client.close()

    @property
    def _tells(self) -> bool:
        """Whether this worker raises what went wrong, at whichever: see agreement.py."""
        return bool(self.parallel_config.rank == self.parallel_config.world_size - 1)

    def _open(self, info: TensorBusInitInfo) -> None:
        self._check(info)
        self._client = TensorBusClient.embedded(
            info.store, namespace=info.namespace, bind=info.bind
        )
        self._intake = self._make_intake(info, self._client)

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

    def _own_name(self, info: TensorBusInitInfo) -> str:
        """Each replica of an engine updates for itself; `instance_id` tells engines apart that were
        told the same, and `join` what a worker was before it was told again."""
        replica = self.parallel_config.data_parallel_index
        return f"{info.side}-{self.vllm_config.instance_id}-{replica}-{info.join}"

    def _make_agreement(self, info: TensorBusInitInfo) -> Agreement:
        parallel = self.parallel_config
        return Agreement(
            info.store, info.namespace, self._own_name(info), parallel.rank, parallel.world_size
        )

    def _make_intake(self, info: TensorBusInitInfo, client: TensorBusClient) -> Intake:
        link = client.link(
            self._own_name(info), info.sender, self.parallel_config.world_size, verify=info.verify
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
