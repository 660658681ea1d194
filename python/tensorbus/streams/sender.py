"""The side that has the tensors."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

from tensorbus.endpoint import Endpoint
from tensorbus.errors import PeerLostError
from tensorbus.kvstore import CoreStore
from tensorbus.streams.board import (
    LEASE_SECONDS,
    Board,
    Wait,
    blocking,
    check_name,
    encoded,
    open_store,
    run,
    waiting,
)
from tensorbus.streams.bucket import Bucket, Form, form_of, to_text
from tensorbus.streams.end import End


class Sent(NamedTuple):
    """Of one sender, when all receivers have taken everything."""

    version: int
    tensors: int
    buckets: int  # of all senders
    bytes: int  # of all senders


class Sender(End):
    """Sender ``index`` of ``senders``, which all iterate over the same tensors in the same order.

    ``bucket_bytes`` and ``dtype``, to which floating point is converted, are the same at all of
    them. ``timeout`` is how long the others may take for each step. ``bind`` is that of
    ``tensorbus.Endpoint``, for receivers on other hosts. One call at a time. A context manager.
    """

    def __init__(
        self,
        store: CoreStore | str,
        name: str,
        *,
        index: int = 0,
        senders: int = 1,
        bucket_bytes: int = 256 << 20,
        depth: int = 2,
        dtype: Any = None,
        timeout: float = 60.0,
        bind: str | None = None,
    ) -> None:
        if not 0 <= index < senders:
            raise ValueError(f"sender {index} of {senders}")
        if bucket_bytes < 1 or depth < 1:
            raise ValueError(f"buckets of {bucket_bytes} bytes, {depth} at a time")
        self.name = check_name("the name of a stream", name)
        self.index, self.senders = index, senders
        self.bucket_bytes, self.depth = bucket_bytes, depth
        self.dtype, self.timeout = dtype, timeout
        self.version = 0
        self.id = uuid.uuid4().hex
        self.store = open_store(store, timeout)
        try:
            self.endpoint = Endpoint(self.store, name=f"sender {index} of {name}", bind=bind)
            self.lease = self.store.lease(LEASE_SECONDS)
            self.board = Board(self.store, f"{name}/r/")
            self.say(f"here/{index}", {"id": self.id})
        except BaseException:
            self.store.close()
            raise

    def send(
        self,
        tensors: Iterable[tuple[str, Any]],
        receivers: Sequence[str],
        *,
        version: int | None = None,
    ) -> Sent:
        """Returns when every receiver has taken everything.

        All senders send the same versions, each larger than the last; the default is the last one
        plus one. ``TimeoutError`` names receivers that did not come or take what was there in
        time, ``PeerLostError`` those that have died. The iterator is then exhausted first: where
        making a tensor is a collective call the other senders need this one.
        """
        return run(self._send(tensors, receivers, version, blocking))

    async def send_async(
        self,
        tensors: Iterable[tuple[str, Any]] | AsyncIterable[tuple[str, Any]],
        receivers: Sequence[str],
        *,
        version: int | None = None,
    ) -> Sent:
        """As ``send``; the iterator is iterated on this thread."""
        return await self._send(tensors, receivers, version, waiting)

    async def _send(
        self,
        tensors: Iterable[tuple[str, Any]] | AsyncIterable[tuple[str, Any]],
        receivers: Sequence[str],
        version: int | None,
        wait: Wait,
    ) -> Sent:
        number = self.version + 1 if version is None else version
        if number <= self.version:
            raise ValueError(f"version {number} of a stream that is at {self.version}")
        names = [check_name("a receiver", each) for each in receivers]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"receivers: {names}; each once, and at least one")
        self._forget(f"failed/{self.version}/{self.index}")
        self.version = number
        self.board.catch_up()
        return await _Sending(self, names, wait).run(_each(tensors))

    def present(self, prefix: str = "") -> list[str]:
        """The receivers that are there now and whose names begin so."""
        keys = self.store.list_keys(f"{self.name}/r/here/{prefix}")
        return sorted(key.rpartition("/")[2] for key in keys)

    def say(self, key: str, value: dict[str, Any]) -> None:
        """To receivers, for as long as this process lives."""
        self.store.set(f"{self.name}/s/{key}", encoded(value), lease=self.lease)

    def _forget(self, key: str) -> None:
        self.store.delete(f"{self.name}/s/{key}")


async def _each(
    tensors: Iterable[tuple[str, Any]] | AsyncIterable[tuple[str, Any]],
) -> AsyncIterator[tuple[str, Any]]:
    if isinstance(tensors, AsyncIterable):
        async for item in tensors:
            yield item
    else:
        for item in tensors:
            yield item


class _Sending:
    """One version on its way."""

    def __init__(self, sender: Sender, receivers: list[str], wait: Wait) -> None:
        self._sender = sender
        self._receivers = receivers
        self._wait = wait
        self._ids: dict[str, str] = {}  # of receivers that have come
        self._bucket = Bucket(0, sender.bucket_bytes)
        self._open: dict[int, bytes] = {}  # descriptors of buckets that somebody has not taken
        self._names: set[str] = set()
        self._bytes = 0

    async def run(self, tensors: AsyncIterator[tuple[str, Any]]) -> Sent:
        try:
            async for name, tensor in tensors:
                await self._add(name, tensor)
            await self._publish(last=True)
            await self._until_taken(self._bucket.number)
        except BaseException as error:
            self._tell(error)
            if isinstance(error, Exception):
                async for _ in tensors:  # the other senders may need this one to make theirs
                    pass
            raise
        finally:
            self._take_back()
        sender = self._sender
        return Sent(sender.version, len(self._names), self._bucket.number + 1, self._bytes)

    async def _add(self, name: Any, tensor: Any) -> None:
        form = form_of(name, tensor, self._sender.dtype)
        if name in self._names:
            raise ValueError(f'"{name}" comes twice')
        self._names.add(name)
        self._bytes += form.nbytes
        if self._bucket.names and not self._bucket.fits(form):
            await self._publish(last=False)
            self._bucket = Bucket(self._bucket.number + 1, self._sender.bucket_bytes)
        if not self._bucket.names:
            await self._make_room(form)
        if self._is_mine():
            self._bucket.put(form, tensor)
        else:
            self._bucket.count(form)

    async def _make_room(self, first: Form) -> None:
        """Before memory is taken: a tensor that is larger than a bucket travels alone."""
        self._bucket.room = max(self._bucket.room, first.room)
        if self._is_mine() and len(self._open) >= self._sender.depth:
            await self._until_taken(min(self._open))

    def _is_mine(self) -> bool:
        return self._bucket.number % self._sender.senders == self._sender.index

    async def _publish(self, last: bool) -> None:
        if not self._is_mine():
            return
        sender, bucket = self._sender, self._bucket
        descriptor = sender.endpoint.expose(bucket.tensors, frozen=True)
        self._open[bucket.number] = descriptor
        record = {
            "sender": sender.index,
            "senders": sender.senders,
            "id": sender.id,
            "last": last,
            "names": bucket.names,
            "tensors": to_text(descriptor),
        }
        bucket.tensors = []  # the endpoint has them
        sender.say(f"bucket/{sender.version}/{bucket.number}", record)

    async def _until_taken(self, number: int) -> None:
        """By all; this sender's buckets up to there come back."""
        sender = self._sender
        try:
            await self._wait(sender.board, lambda: self._have_taken(number), sender.timeout)
        except TimeoutError:
            raise TimeoutError(
                f'bucket {number} of version {sender.version} of "{sender.name}" was not taken in '
                f"{sender.timeout} s: {self._who_has_not(number)}"
            ) from None
        for each in [each for each in self._open if each <= number]:
            self._release(each)

    def _have_taken(self, number: int) -> bool | None:
        lost = []
        for receiver in self._receivers:
            here = self._sender.board.known.get(f"here/{receiver}")
            if here is not None:
                first = self._ids.setdefault(receiver, str(here.get("id")))
                here = here if first == here.get("id") else None
            if here is None and receiver in self._ids:
                lost.append(receiver)
        if lost:
            raise PeerLostError(
                f'receivers of "{self._sender.name}" are gone: {", ".join(lost)}; '
                f"version {self._sender.version} did not reach them"
            )
        for receiver in self._receivers:
            self._raise_if_left(receiver)
        return True if not self._missing(number) else None

    def _raise_if_left(self, receiver: str) -> None:
        left = self._sender.board.known.get(f"left/{receiver}", {})
        if self._is_meant(left) and left.get("version") == self._sender.version:
            raise RuntimeError(
                f'receiver {receiver} of "{self._sender.name}" has left version '
                f"{self._sender.version}: {left.get('why')}"
            )

    def _missing(self, number: int) -> list[str]:
        known = self._sender.board.known
        return [
            receiver
            for receiver in self._receivers
            if not self._is_taken(known.get(f"took/{receiver}", {}), number)
        ]

    def _is_taken(self, took: dict[str, Any], number: int) -> bool:
        """A receiver that is at a later version has had this one: it may be that only now this
        sender, which had no bucket of its own, looks."""
        if not self._is_meant(took):
            return False
        return (took.get("version", 0), took.get("bucket", 0)) >= (self._sender.version, number)

    def _is_meant(self, said: dict[str, Any]) -> bool:
        """And not a sender that was here before this one."""
        sender = self._sender
        ids = said.get("senders")
        return isinstance(ids, dict) and ids.get(str(sender.index)) == sender.id

    def _who_has_not(self, number: int) -> str:
        missing = self._missing(number)
        gone = [each for each in missing if each not in self._ids]
        slow = [each for each in missing if each in self._ids]
        texts = [f"{', '.join(gone)} never came"] if gone else []
        return "; ".join(texts + ([f"{', '.join(slow)} did not take it"] if slow else []))

    def _tell(self, error: BaseException) -> None:
        """Receivers need not wait for what does not come."""
        sender = self._sender
        reason = {"why": f"{type(error).__name__}: {error}"[:1000], "id": sender.id}
        with contextlib.suppress(Exception):
            sender.say(f"failed/{sender.version}/{sender.index}", reason)

    def _release(self, number: int) -> None:
        descriptor = self._open.pop(number)
        self._sender._forget(f"bucket/{self._sender.version}/{number}")
        self._sender.endpoint.release(descriptor)

    def _take_back(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            for number in list(self._open):
                self._release(number)
