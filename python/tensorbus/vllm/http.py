"""A vLLM server's routes for weight updates, with what Python has itself.

The server needs ``VLLM_SERVER_DEV_MODE=1``.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any


class HttpClient:
    """A ``Client`` of ``tensorbus.vllm.sending``."""

    def __init__(self, server_url: str, *, timeout: float = 300.0) -> None:
        if urllib.parse.urlsplit(server_url).scheme not in ("http", "https"):
            raise ValueError(f"a vLLM server is called http://host:port, not {server_url!r:.100}")
        self.server_url = server_url.rstrip("/")
        self._timeout = timeout

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._post("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._post("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._post("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        said = None if weight_version is None else {"weight_version": weight_version}
        self._post("finish_weight_update", said)

    def shutdown_weight_transfer_engine(self) -> None:
        self._post("shutdown_weight_transfer_engine")

    def pause(self, mode: str = "keep") -> None:
        self._post(f"pause?{urllib.parse.urlencode({'mode': mode})}")

    def resume(self) -> None:
        self._post("resume")

    def _post(self, route: str, body: dict[str, Any] | None = None) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        request = urllib.request.Request(
            f"{self.server_url}/{route}", data=data, headers=headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            text = error.read(2000).decode(errors="replace")
            raise RuntimeError(
                f"{self.server_url}/{route} answered {error.code}: {text}{_hint(error.code)}"
            ) from None
        except urllib.error.URLError as error:
            raise ConnectionError(f"{self.server_url}/{route}: {error.reason}") from error


def _hint(code: int) -> str:
    return "; was the server started with VLLM_SERVER_DEV_MODE=1?" if code == 404 else ""
