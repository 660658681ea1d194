"""A trainer's half of an update, whatever drives it. Nothing here needs vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self

from tensorbus.environment import store_url
from tensorbus.streams.sender import Sender


class Client(Protocol):
    """How a trainer calls engines: vLLM's ``VLLMWeightSyncClient``."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...
    def start_weight_update(self) -> None: ...
    def update_weights(self, update_info: Any) -> None: ...
    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


class EngineSender:
    """Sends the weights of ``world_size`` trainer ranks to all workers of an engine.

    Rank 0 alone calls the engine, through ``client``. ``side`` names the engine: several engines
    of one trainer have different ones, and a sender each.
    """

    def __init__(
        self,
        client: Client,
        store: str | None = None,
        *,
        name: str = "policy",
        side: str = "engine",
        rank: int = 0,
        world_size: int = 1,
        dtype: Any = None,
        bucket_bytes: int = 256 << 20,
        depth: int = 2,
        timeout: float = 60.0,
        bind: str | None = None,
    ) -> None:
        self._client = client
        self._url = store_url(store)
        self._stream = f"{name}-{side}"
        self._side, self._rank, self._timeout = side, rank, timeout
        self._sender = Sender(
            self._url, self._stream, index=rank, senders=world_size, bucket_bytes=bucket_bytes,
            depth=depth, dtype=dtype, timeout=timeout, bind=bind,
        )  # fmt: skip
        self._workers: list[str] = []

    def join(self) -> None:
        """Rank 0 tells the engine where the weights will come from; others do nothing."""
        if self._rank == 0:
            where = {"store": self._url, "stream": self._stream, "side": self._side}
            self._client.init_weight_transfer_engine(where | {"timeout": self._timeout})
            self._workers = self._sender.present(f"{self._side}.")
            if not self._workers:
                raise RuntimeError(f'no worker of "{self._side}" has joined "{self._stream}"')

    def send(self, tensors: Iterable[tuple[str, Any]]) -> int:
        """On every rank; the version, when all workers serve it. If it raises, they serve what
        they served before, unless ``finish_weight_update`` of the engine has raised."""
        version = self._sender.version + 1
        if self._rank != 0:
            return self._sender.send(tensors, self._told(version), version=version).version
        self._tell(version)
        self._client.start_weight_update()
        with ThreadPoolExecutor(1, "tensorbus update") as thread:
            update = thread.submit(self._client.update_weights, {"version": version})
            try:
                self._sender.send(tensors, self._workers, version=version)
            except Exception as error:
                # What the engine says may be the reason.
                raise error from update.exception()
            update.result()
        self._client.finish_weight_update(str(version))
        return version

    def close(self) -> None:
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _key(self, version: int) -> str:
        return f"{self._stream}/workers/{version}"

    def _tell(self, version: int) -> None:
        """The other ranks, to whom they send."""
        store = self._sender.store
        store.delete(self._key(version - 2))  # a rank without a bucket may be at the last one
        store.set(self._key(version), json.dumps(self._workers), lease=self._sender.lease)

    def _told(self, version: int) -> list[str]:
        data = self._sender.store.wait_for_key(self._key(version), timeout=self._timeout)
        return [str(each) for each in json.loads(data)]
