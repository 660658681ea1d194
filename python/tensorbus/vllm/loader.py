"""An engine that starts with the weights of a living trainer."""

from __future__ import annotations

import os
import socket
import uuid
from typing import Any

from tensorbus.client import TensorBusClient
from tensorbus.environment import store_url
from tensorbus.frameworks import load

_base = load(
    "tensorbus.vllm.loader",
    "vllm.model_executor.model_loader.base_loader",
    "vLLM 0.28 to 0.32: pip install vllm",
)

_SETTINGS = {"store", "namespace", "name", "sender", "version", "timeout"}


class TensorBusModelLoader(_base.BaseModelLoader):  # type: ignore[misc, name-defined]
    """``--load-format tensorbus``; ``--model-loader-extra-config`` has ``store`` (default:
    ``TENSORBUS_STORE``), ``name`` of the state dict (``policy``), ``sender``, the trainer's name of
    its link (``trainer``), ``namespace``, ``version`` and ``timeout``.

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

    def load_weights(self, model: Any, model_config: Any) -> None:  # noqa: ARG002
        settings = self._settings
        own = f"loader-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        # Each worker is a side of its own, so that engines come and go as they like.
        client = TensorBusClient.embedded(
            store_url(settings.get("store")), namespace=settings.get("namespace")
        )
        with client, client.link(own, settings.get("sender", "trainer"), 1) as link:
            _, tensors = link.pull_new(
                settings.get("name", "policy"),
                version=settings.get("version"),
                timeout=float(settings.get("timeout", 300.0)),
            )
            model.load_weights(iter(tensors.items()))
