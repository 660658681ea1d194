"""Model weights by name and version, from the ranks of one side to those of others."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorbus import _core, pool
from tensorbus._core import Replicate, Tensors
from tensorbus.errors import PeerLostError
from tensorbus.stage import Stage
from tensorbus.state_dict import Entries, entries_of

if TYPE_CHECKING:
    from tensorbus.client import BatchHandler, TensorBusClient


logger = logging.getLogger("tensorbus")

# How long an agent may take to accept what the others should know, before the caller is told.
_TELLING_TIME = 1.0
_LONGEST_REASON = 4000


@dataclass
class _Registered:
    """A name that is registered in one direction."""

    handler: BatchHandler
    form: list[Any]
    stage: Stage | None  # of a sender


class Link:
    """Between the ranks called ``local_name`` and those called ``remote_name``: see
    ``TensorBusClient.link``.

    A state dict is a nested dictionary of tensors. A DTensor is laid out as it says, on whatever
    mesh; a plain tensor is replicated: every rank of the side has all of it. The first call for a
    name waits for the other side and plans; later ones reuse the plan while names, shapes, types
    and layouts stay the same.
    """

    def __init__(
        self,
        client: TensorBusClient,
        local_name: str,
        remote_name: str,
        expected_world_size: int,
        verify: str,
    ) -> None:
        if verify not in ("off", "sample", "full"):
            raise ValueError(f'verify is "off", "sample" or "full", not {verify!r}')
        self._client = client
        self._verify = verify
        self._registered: dict[tuple[str, bool], _Registered] = {}
        self._last: dict[tuple[str, bool], int] = {}
        self._turns: dict[tuple[str, bool], threading.Lock] = {}
        self._pairs: set[str] = set()
        self.local_name = local_name
        self.remote_name = remote_name
        self.expected_world_size = expected_world_size

    def send_state_dict(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        timeout: float | None = 30.0,
        allow_lost: bool = False,
        min_readers: int = 0,
    ) -> int:
        """Offers a version and waits until every reader of every rank has read it; returns the
        version.

        Every rank of the side sends the same versions in the same order; the default is the last
        one plus one. Tensors of ``tensorbus.empty`` and ``share_`` are read where they are and
        must stay there; others are first copied into memory of the link. A reader that is gone
        makes it raise ``PeerLostError`` with ``.readers``, after all others have read, or with
        ``allow_lost`` is passed over. With fewer readers than ``min_readers`` it waits for more;
        without, it returns at once if there are none. When another rank of this side is gone the
        call raises, and the next one waits until it is back. Threads that send the same name
        take turns.
        """
        left = _Countdown(timeout)
        with self._turn((name, True), left):
            return self._send((name, True), state_dict, version, left, allow_lost, min_readers)

    def _send(
        self,
        key: tuple[str, bool],
        state_dict: Mapping[Any, Any],
        version: int | None,
        left: _Countdown,
        allow_lost: bool,
        min_readers: int,
    ) -> int:
        entries = self._entries(key, state_dict)
        registered = self._registered.get(key)
        if registered is None or registered.form != entries.form():
            registered = self._register(key, entries, left)
        assert registered.stage is not None
        try:
            views = registered.stage.fill(entries.locals, entries.views)
            self._last[key] = self._transfer(key, views, version, left, min_readers)
        except PeerLostError as error:
            self._end_if_stale(key, error)
            if not allow_lost or error.stale or "failed" in error.readers.values():
                raise
            self._last[key] = error.version
        except Exception as error:
            self._end_if_stale(key, error)
            raise
        return self._last[key]

    def recv_state_dict(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        timeout: float | None = 30.0,
    ) -> int:
        """Fills the tensors in place with the next version that is sent, or is being offered
        now; returns the version.

        With ``version`` earlier ones are passed over, and a later one raises ``RuntimeError``
        without touching the tensors. After any other error their contents are undefined until the
        next call. Threads that receive the same name take turns.
        """
        left = _Countdown(timeout)
        with self._turn((name, False), left):
            return self._recv((name, False), state_dict, version, left)

    def _recv(
        self,
        key: tuple[str, bool],
        state_dict: Mapping[Any, Any],
        version: int | None,
        left: _Countdown,
    ) -> int:
        entries = self._entries(key, state_dict)
        registered = self._registered.get(key)
        if registered is None or registered.form != entries.form():
            self._register(key, entries, left)
        elif (core := self._core()).moved(self._batch(key), self.local_name, entries.views):
            core.replace(self._batch(key), self.local_name, entries.views, left())
            self._hold(registered.handler, entries.tensors)
        self._last[key] = self._transfer(key, entries.views, version, left)
        return self._last[key]

    def versions(self, name: str, *, timeout: float | None = 30.0) -> dict[str, dict[int, int]]:
        """Which version each rank of each side last sent or has read, as far as this rank's agent
        has heard: ``{side: {rank: version}}``. 0 is none yet; a rank that is gone is not there.
        """
        for key in ((name, True), (name, False)):
            if key in self._registered:
                return self._core().versions(self._batch(key), self.local_name, timeout)
        raise ValueError(f'"{name}" was neither sent nor received over this link')

    def close(self) -> None:
        """Frees what was registered; what other threads send or receive fails. The client stays
        open."""
        for key in list(self._registered):
            registered = self._registered.pop(key, None)
            if registered is not None:
                registered.handler.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_client(self) -> TensorBusClient:
        self._client._check_open()
        return self._client

    def _core(self) -> _core.BusClient:
        return self._open_client()._core

    def _sender(self, send: bool) -> str:
        return self.local_name if send else self.remote_name

    def _batch(self, key: tuple[str, bool]) -> str:
        # By the sender's name: whoever else receives from it finds the same one.
        return f"{self._sender(key[1])}/{key[0]}"

    @contextlib.contextmanager
    def _turn(self, key: tuple[str, bool], left: _Countdown) -> Iterator[None]:
        """One call at a time for a name and direction: they share its registration and stages."""
        lock = self._turns.setdefault(key, threading.Lock())
        if not lock.acquire(blocking=False):
            # In a forked child, where the thread that has it is not, this raises.
            _ = self._core().agent_pid
            patience = left()
            seconds = -1 if patience is None else min(patience, threading.TIMEOUT_MAX)
            if not lock.acquire(timeout=seconds):
                doing = "sending" if key[1] else "receiving"
                raise TimeoutError(
                    f'another thread is {doing} "{key[0]}" over this link and has not ended in time'
                )
        try:
            yield
        finally:
            lock.release()

    def _entries(self, key: tuple[str, bool], state_dict: Mapping[Any, Any]) -> Entries:
        try:
            return entries_of(state_dict)
        except (TypeError, ValueError) as error:
            self._refuse(key, str(error)[:_LONGEST_REASON])
            raise

    def _refuse(self, key: tuple[str, bool], why: str) -> None:
        """Tells the others, who would wait for this rank, that it has nothing that can be moved."""
        before = self._registered.pop(key, None)
        if before is not None:
            before.handler.close(blocking=False)
        try:
            self._join_pair(key, blocking=False, timeout=_TELLING_TIME)
            self._core().refuse(
                self._batch(key), self.local_name, self._sender(key[1]), key[1], why, _TELLING_TIME
            )
        except Exception as error:  # its caller is told something more important
            logger.debug('the others were not told about "%s": %s', key[0], error)

    def _join_pair(self, key: tuple[str, bool], *, blocking: bool, timeout: float | None) -> None:
        pair = self._sender(key[1])
        if pair in self._pairs:
            return
        size = self.expected_world_size
        self._core().init_pair(
            pair, self.local_name, self.remote_name, size, [size], [Replicate()], None, blocking,
            timeout,
        )  # fmt: skip
        if blocking:
            self._pairs.add(pair)

    def _register(self, key: tuple[str, bool], entries: Entries, left: _Countdown) -> _Registered:
        client = self._open_client()
        self._join_pair(key, blocking=True, timeout=left())
        self._unregister(key, left)
        pair = self._sender(key[1])
        stage = Stage(entries.locals, entries.views, self._turns[key]) if key[1] else None
        handler = client._register(
            self._batch(key), stage.placed(entries.locals) if stage else entries.locals,
            [(pair, name) for name in entries.names], entries.shapes, role=self.local_name,
            verify=self._verify, layouts=entries.layouts, pairs=[pair],
            versioned=(key[1], self._last.get(key, 0)),
            held=stage.placed(entries.tensors) if stage else entries.tensors, timeout=left(),
        )  # fmt: skip
        self._registered[key] = _Registered(handler, entries.form(), stage)
        return self._registered[key]

    def _unregister(self, key: tuple[str, bool], left: _Countdown) -> None:
        """Its stage goes back to the system before another is made."""
        before = self._registered.pop(key, None)
        if before is None:
            return
        before.handler.close(timeout=left())
        if before.stage is not None:
            before.stage = None
            pool.trim()

    def _hold(self, handler: BatchHandler, tensors: list[Any]) -> None:
        assert handler._registration is not None
        self._open_client()._held[handler._registration] = handler.batch_id, tensors

    def _transfer(
        self,
        key: tuple[str, bool],
        views: Tensors,
        version: int | None,
        left: _Countdown,
        min_readers: int = 0,
    ) -> int:
        transfer = self._core().transfer(
            self._batch(key), key[1], self.local_name, views, True, version, left(), min_readers
        )
        return transfer.result(None)[3]

    def _end_if_stale(self, key: tuple[str, bool], error: Exception) -> None:
        """Another sender is gone: the next call begins anew, together with the others."""
        registered = self._registered.pop(key, None) if getattr(error, "stale", False) else None
        if registered is not None:
            registered.handler.close(blocking=False)


class _Countdown:
    """What is left of a timeout."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())
