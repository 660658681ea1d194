"""An engine that starts with the weights of a living trainer."""

from __future__ import annotations

from typing import Any

from tensorbus.client import TensorBusClient
from tensorbus.environment import store_url
from tensorbus.frameworks import load

_base = load(
    "tensorbus.vllm.loader",
    "vllm.model_executor.model_loader.base_loader",
    "vLLM 0.28 to 0.32",
    "vllm",
)

_SETTINGS = {"store", "namespace", "name", "sender", "version", "timeout", "bind"}


class TensorBusModelLoader(_base.BaseModelLoader):  # type: ignore[misc, name-defined]
    """``--load-format tensorbus``; ``--model-loader-extra-config`` has ``store`` (default:
    ``TENSORBUS_STORE``), ``name`` of the state dict (``policy``), ``sender``, the trainer's name of
    its link (``trainer``), ``namespace``, ``version``, ``timeout`` and ``bind``.

    The trainer publishes under the names of the model's checkpoint. Configuration and tokenizer
    still come from ``--model``.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self._settings = dict(load_config.model_loader_extra_config or {})
        unknown = sorted(self._settings.keys() - _SETTINGS)
        if unknown:
            raise ValueError(
                f"model_loader_extra_config has {', '.join(unknown)}; the load format tensorbus "
                f"knows {', '.join(sorted(_SETTINGS))}"
            )

    def download_model(self, model_config: Any) -> None:
        """There is nothing to download."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        from vllm.config import get_current_vllm_config

        config = get_current_vllm_config()
        parallel = config.parallel_config
        # All workers of an engine load one version: they are one side.
        side = f"loader-{config.instance_id}-{parallel.data_parallel_index}"
        settings = self._settings
        client = TensorBusClient.embedded(
            store_url(settings.get("store")),
            namespace=settings.get("namespace"),
            bind=settings.get("bind"),
        )
        sender = settings.get("sender", "trainer")
        with client, client.link(side, sender, parallel.world_size) as link:
            _, tensors = link.pull_new(
                settings.get("name", "policy"),
                version=settings.get("version"),
                timeout=float(settings.get("timeout", 300.0)),
            )
            loaded = model.load_weights(iter(tensors.items()))
        _check_complete(model, model_config, loaded)


def _check_complete(model: Any, model_config: Any, loaded: set[str] | None) -> None:
    """ValueError if a parameter has got nothing, where models say what they have loaded."""
    if loaded is None or getattr(model_config, "quantization", None) is not None:
        return
    missing = sorted({name for name, _ in model.named_parameters()} - loaded)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ValueError(
            f"the trainer has published nothing for {', '.join(missing[:5])}{more}; does it use "
            "the names of the model's checkpoint?"
        )
