"""The side that wants the tensors."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NoReturn

from tensorbus.endpoint import Endpoint, Read
from tensorbus.errors import PeerLostError, WithdrawnError
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
from tensorbus.streams.bucket import from_text, is_record
from tensorbus.streams.end import End

Finish = Callable[[Read], Awaitable[list[Any]]]


class Receiver(End):
    """The receiver that senders call ``member``.

    ``timeout`` is how long the senders may take for each step. ``bind`` is that of
    ``tensorbus.Endpoint``, for senders on other hosts. One call at a time. A context manager.
    """

    def __init__(
        self,
        store: CoreStore | str,
        name: str,
        member: str,
        *,
        timeout: float = 60.0,
        bind: str | None = None,
    ) -> None:
        self.name = check_name("the name of a stream", name)
        self.member = check_name("a receiver", member)
        self.timeout = timeout
        self.version = 0  # that was received last
        self.paths: dict[str, int] = {}  # how many buckets came by which path of an Endpoint
        self._begun = 0, ""  # the last version that came, whole or not, and its first sender
        self.store = open_store(store, timeout)
        try:
            self.endpoint = Endpoint(self.store, name=f"{member} of {name}", bind=bind)
            self.board = Board(self.store, f"{name}/s/")
            self._come()
        except BaseException:
            self.store.close()
            raise

    def receive(self, version: int | None = None) -> Iterator[tuple[str, Any]]:
        """The tensors of a version, by default of the next that this receiver has not had.

        A tensor that is kept keeps its bucket's memory; on the senders' host it is theirs, to which
        what is written here does not go. ``PeerLostError`` names a sender that has died,
        ``TimeoutError`` the bucket that did not come, ``RuntimeError`` says why a sender gave up.
        """
        receiving = _Receiving(self, version, blocking, _finish_blocking)
        try:
            while (bucket := run(receiving.next_bucket())) is not None:
                while bucket:
                    yield bucket.pop(0)
        finally:
            receiving.leave()

    async def receive_async(self, version: int | None = None) -> AsyncIterator[tuple[str, Any]]:
        """As ``receive``."""
        async with contextlib.aclosing(self.receive_buckets(version)) as buckets:
            async for bucket in buckets:
                while bucket:
                    yield bucket.pop(0)

    async def receive_buckets(
        self, version: int | None = None
    ) -> AsyncGenerator[list[tuple[str, Any]], None]:
        """As ``receive_async``, with all tensors of a bucket at a time."""
        receiving = _Receiving(self, version, waiting, _finish_waiting)
        try:
            while (bucket := await receiving.next_bucket()) is not None:
                yield bucket
                del bucket
        finally:
            receiving.leave()

    def say(self, key: str, value: dict[str, Any]) -> None:
        """To senders, for as long as this process lives."""
        full = f"{self.name}/r/{key}/{self.member}"
        self.store.set(full, encoded(value), lease=self._lease)

    def come_back(self) -> None:
        """After the process stood still for so long that it was taken for dead."""
        if not self._lease.alive:
            self._come()

    def _come(self) -> None:
        self._lease = self.store.lease(LEASE_SECONDS)
        self.say("here", {"id": uuid.uuid4().hex})


async def _finish_blocking(read: Read) -> list[Any]:
    return read.wait()


async def _finish_waiting(read: Read) -> list[Any]:
    return await read


class _Receiving:
    """One version on its way."""

    def __init__(self, receiver: Receiver, version: int | None, wait: Wait, finish: Finish) -> None:
        self._receiver = receiver
        self._version = version
        self._wait = wait
        self._finish = finish
        self._next = 0
        self._over = False
        self._ids: dict[str, str] = {}  # of the senders, by their index
        self._senders: int | None = None  # how many there are
        self._record: dict[str, Any] | None = None  # whose tensors are being taken
        receiver.come_back()
        receiver.board.catch_up()

    async def next_bucket(self) -> list[tuple[str, Any]] | None:
        """After the last one nothing, and the senders know that all was taken."""
        if self._record is not None:
            await self._taken(self._record)
        if self._over:
            return None
        record = self._record = await self._wait_for_bucket()
        tensors = await self._read(record)
        return list(zip(record["names"], tensors, strict=True))

    def leave(self) -> None:
        """Senders need not wait for who has stopped before the end."""
        if self._over or self._version is None:
            return
        self._over = True
        why = "it stopped before the end"
        said = {"version": self._version, "senders": self._present(), "why": why}
        with contextlib.suppress(Exception):
            self._receiver.say("left", said)

    async def _taken(self, record: dict[str, Any]) -> None:
        if record["last"]:
            # So that all of them, also those without a bucket, see that it is meant for them.
            await self._wait_until(lambda: self._know_all(record), "the other senders")
        said = {"version": self._version, "bucket": self._next, "senders": self._ids}
        self._receiver.say("took", said)
        self._next += 1
        if record["last"]:
            self._over = True
            self._receiver.version = self._version or 0

    def _know_all(self, record: dict[str, Any]) -> bool | None:
        self._look_for_losses()
        present = self._present()
        if any(str(index) not in present for index in range(record["senders"])):
            return None
        self._ids = present
        return True

    def _present(self) -> dict[str, str]:
        """The senders that are there, with those that this version came from."""
        here = {
            key.removeprefix("here/"): str(said.get("id"))
            for key, said in self._receiver.board.known.items()
            if key.startswith("here/")
        }
        return here | self._ids

    async def _wait_for_bucket(self) -> dict[str, Any]:
        found = self._find_first if self._version is None else self._find
        what = "a version" if self._version is None else f"bucket {self._next}"
        record: dict[str, Any] = await self._wait_until(found, what)
        self._ids[str(record["sender"])] = str(record["id"])
        if self._next == 0:
            self._receiver._begun = self._version or 0, str(record["id"])
            # Also those whose first bucket is still to come are missed from now on.
            senders = {str(index) for index in range(record["senders"])}
            self._ids = {each: own for each, own in self._present().items() if each in senders}
        return record

    async def _wait_until(self, found: Callable[[], Any], what: str) -> Any:
        receiver = self._receiver
        try:
            return await self._wait(receiver.board, found, receiver.timeout)
        except TimeoutError:
            raise TimeoutError(
                f'{receiver.member} of "{receiver.name}" waited {receiver.timeout} s for {what}'
                f"{'' if self._version is None else f' of version {self._version}'}"
            ) from None

    def _find_first(self) -> dict[str, Any] | None:
        """Of the newest version."""
        versions = list(filter(None, map(self._new_version, self._receiver.board.known.items())))
        if not versions:
            return None
        self._version = max(versions)
        return self._find()

    def _new_version(self, item: tuple[str, dict[str, Any]]) -> int | None:
        """Of a first bucket: one that is newer, or that a sender has made who is new."""
        (kind, *rest), record = item[0].split("/"), item[1]
        if kind != "bucket" or len(rest) != 2 or rest[1] != "0" or not rest[0].isdecimal():
            return None
        begun, source = self._receiver._begun
        return int(rest[0]) if int(rest[0]) > begun or record.get("id") != source else None

    def _find(self) -> dict[str, Any] | None:
        self._look_for_losses()
        known = self._receiver.board.known
        record = known.get(f"bucket/{self._version}/{self._next}")
        if record is not None and not is_record(record):
            raise RuntimeError(
                f'bucket {self._next} of version {self._version} of "{self._receiver.name}" is '
                "described by something that no sender has written"
            )
        if record is not None and not self._is_here(record["sender"], record):
            return None
        self._raise_if_given_up(record)
        return record

    def _raise_if_given_up(self, record: dict[str, Any] | None) -> None:
        """By one of the senders that are there now, as many as a bucket says."""
        if record is not None:
            self._senders = record["senders"]
        for key, said in self._receiver.board.known.items():
            kind, _, rest = key.partition("/")
            version, _, index = rest.partition("/")
            if kind != "failed" or version != str(self._version) or not index.isdecimal():
                continue
            is_one = self._senders is None or int(index) < self._senders
            if is_one and self._is_here(index, said):
                raise RuntimeError(
                    f'sender {index} of "{self._receiver.name}" gave up version '
                    f"{self._version}: {said.get('why')}"
                )

    def _is_here(self, index: int | str, said: dict[str, Any]) -> bool:
        """Whether the sender that said it is there, and not only another in its place."""
        here = self._receiver.board.known.get(f"here/{index}")
        return here is not None and here.get("id") == said.get("id")

    def _look_for_losses(self) -> None:
        known = self._receiver.board.known
        lost = [
            index for index, own in self._ids.items()
            if known.get(f"here/{index}", {}).get("id") != own
        ]  # fmt: skip
        if lost:
            self._raise_lost(lost)

    def _raise_lost(self, lost: list[str], error: Exception | None = None) -> NoReturn:
        raise PeerLostError(
            f'senders of "{self._receiver.name}" are gone: {", ".join(lost)}; '
            f"version {self._version} cannot be received"
        ) from error

    async def _read(self, record: dict[str, Any]) -> list[Any]:
        receiver = self._receiver
        descriptor = from_text(record["tensors"])
        read = receiver.endpoint.start_read(descriptor, timeout=receiver.timeout, torch=True)
        try:
            tensors = await self._finish(read)
        except WithdrawnError:
            await self._wait_until(self._reason, "the reason why it was taken back")
            raise
        except (ConnectionError, PeerLostError) as error:
            self._raise_lost([str(record["sender"])], error)
        receiver.paths[read.path] = receiver.paths.get(read.path, 0) + 1
        return tensors

    def _reason(self) -> bool | None:
        """Raises it."""
        return None if self._find() is not None else True
