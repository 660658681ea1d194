"""Streams for frameworks that set up a group of workers anew for every transfer.

Each round every worker says who it is; one of them, the master, where the store is and which round
it is. From all this together every worker opens what it needs and keeps it for the next round.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from tensorbus.environment import store_url
from tensorbus.kvstore import StoreServer
from tensorbus.streams.receiver import Receiver
from tensorbus.streams.sender import Sender


class Rounds:
    """One worker's part. Without a store the master serves one, for this host only."""

    def __init__(
        self,
        bucket_bytes: int,
        *,
        store: str | None = None,
        depth: int = 2,
        dtype: Any = None,
        timeout: float = 60.0,
        bind: str | None = None,
    ) -> None:
        self.bucket_bytes, self.depth, self.dtype = bucket_bytes, depth, dtype_of(dtype)
        self.timeout, self.bind = float(timeout), bind
        self.member = uuid.uuid4().hex
        self._url = store
        self._server: StoreServer | None = None
        self._round = 0
        self._setting: dict[str, Any] = {}
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None

    def describe(self, is_master: bool) -> dict[str, Any]:
        """What the others must know of this worker in the next round."""
        said: dict[str, Any] = {"member": self.member}
        if is_master:
            self._round += 1
            said |= {"store": self._store(), "stream": f"round-{self.member}"}
            said["round"] = self._round
        return said

    def join(self, workers: Sequence[dict[str, Any]], senders: int, rank: int) -> None:
        """``workers`` is what all have said, the first ``senders`` of them are the senders, and
        ``rank`` is this worker's position."""
        master = next((each for each in workers if "stream" in each), None)
        if master is None:
            raise ValueError("no worker was told that it is the master (rank 0 of the trainers)")
        self._setting = dict(master)
        self._setting["receivers"] = [each["member"] for each in workers[senders:]]
        if rank < senders:
            self._open_sender(rank, senders)
        else:
            self._open_receiver()

    async def send(self, tensors: Any) -> dict[str, Any]:
        """Counts, for the framework's metrics."""
        if self._sender is None:
            raise RuntimeError("this worker did not join the round as a sender")
        receivers, version = self._setting["receivers"], self._setting["round"]
        sent = await self._sender.send_async(tensors, receivers, version=version)
        return {"tensorbus/buckets": sent.buckets, "tensorbus/bytes": sent.bytes}

    def receive(self) -> AsyncGenerator[list[tuple[str, Any]], None]:
        """Lists of names and tensors."""
        if self._receiver is None:
            raise RuntimeError("this worker did not join the round as a receiver")
        return self._receiver.receive_buckets(self._setting["round"])

    def close(self) -> None:
        for each in (self._sender, self._receiver):
            if each is not None:
                each.close()
        self._sender = self._receiver = None
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _store(self) -> str:
        if self._url is None:
            try:
                self._url = store_url(None)
            except ValueError:
                self._server = StoreServer("127.0.0.1", 0)
                self._url = self._server.url
        return self._url

    def _open_sender(self, index: int, senders: int) -> None:
        now, stream = self._sender, self._setting["stream"]
        if now is not None and (now.name, now.index, now.senders) == (stream, index, senders):
            return
        if now is not None:
            now.close()
        self._sender = Sender(
            self._setting["store"], stream, index=index, senders=senders,
            bucket_bytes=self.bucket_bytes, depth=self.depth, dtype=self.dtype,
            timeout=self.timeout, bind=self.bind,
        )  # fmt: skip

    def _open_receiver(self) -> None:
        now, stream = self._receiver, self._setting["stream"]
        if now is not None and now.name == stream:
            return
        if now is not None:
            now.close()
        self._receiver = Receiver(
            self._setting["store"], stream, self.member, timeout=self.timeout, bind=self.bind
        )


def dtype_of(given: Any) -> Any:
    """Configurations have names."""
    if not isinstance(given, str):
        return given
    import torch

    dtype = getattr(torch, given.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"there is no type {given!r} in torch")
    return dtype
