"""Weights from TRL's asynchronous GRPO trainer to a vLLM server.

>>> AsyncGRPOTrainer(..., weight_transfer=tensorbus.trl.WeightTransfer(server_url, store))

The server is ``VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config
'{"backend": "tensorbus"}'``. Neither TRL nor vLLM is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorbus.extras import need
from tensorbus.vllm.http import HttpClient
from tensorbus.vllm.sending import EngineSender


class WeightTransfer:
    """TRL's ``WeightTransferProtocol`` (1.16), on its main process.

    ``options`` are those of ``tensorbus.vllm.sending.EngineSender``: ``dtype``, ``timeout``,
    ``bind``, ``name``, ``sender``, ``namespace``. The mode is ``"staged"``: TRL says the names of
    its tensors only when it sends them.
    """

    def __init__(
        self, server_url: str, store: str | None = None, *, http_timeout: float = 1800.0,
        **options: Any,
    ) -> None:  # fmt: skip
        need("torch", "tensorbus.trl", extra="trl")
        self._client = HttpClient(server_url, timeout=http_timeout)
        self._store, self._options = store, options
        self._sender: EngineSender | None = None
        self.version = 0  # that the server serves

    def init_weight_transfer(self) -> None:
        self.destroy()
        sender = EngineSender(self._store, **self._options)
        try:
            sender.join(self._client)
        except BaseException:
            sender.close()
            raise
        self._sender = sender

    def pause(self) -> None:
        self._client.pause()

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        if self._sender is None:
            raise RuntimeError("init_weight_transfer() comes first")
        self.version = self._sender.send(iterator)

    def resume(self) -> None:
        self._client.resume()

    def destroy(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None
