"""Model weights by name and version, from the ranks of one side to those of others."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
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
_PROGRESS_EVERY = 0.05
# How long an agent may take to stop writing after a pull was cancelled.
_DRAINING_TIME = 2.0


@dataclass(frozen=True)
class _Key:
    """A name in one direction, sent in rounds or published."""

    name: str
    send: bool
    shelf: bool = False


@dataclass
class _Registered:
    """A name that is registered in one direction."""

    handler: BatchHandler
    form: list[Any]
    stage: Stage | None  # of a sender
    subset: bool = False  # of a receiver


class Link:
    """Between the ranks called ``local_name`` and those called ``remote_name``: see
    ``TensorBusClient.link``.

    A state dict is a nested dictionary of tensors. A DTensor is laid out as it says, on whatever
    mesh; a ``tensorbus.Part`` or ``Sharded`` is what it says of the whole, and a list of them
    several boxes; a plain tensor is the whole, at the ranks that have it. Ranks of a side may hold
    different names, and different kinds may face each other. The first call for a name waits for
    the other side and plans; later ones reuse the plan while names, shapes, types and layouts stay
    the same. What does not fit is a ``ValueError`` at the receivers, line by line; the senders go
    on waiting for receivers that fit.
    """

    def __init__(
        self,
        client: TensorBusClient,
        local_name: str,
        remote_name: str | None,
        expected_world_size: int,
        verify: str,
    ) -> None:
        if verify not in ("off", "sample", "full"):
            raise ValueError(f'verify is "off", "sample" or "full", not {verify!r}')
        self._client = client
        self._verify = verify
        self._registered: dict[_Key, _Registered] = {}
        self._last: dict[_Key, int] = {}
        self._turns: dict[_Key, threading.Lock] = {}
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
        skip_others: bool = False,
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
        take turns. With ``skip_others`` what is no tensor is left out instead of refused.
        """
        left = _Countdown(timeout)
        key = _Key(name, True)
        with self._turn(key, left):
            entries = self._entries(key, state_dict, skip_others)
            return self._send(key, entries, version, left, allow_lost, min_readers)

    def _send(
        self,
        key: _Key,
        entries: Entries,
        version: int | None,
        left: _Countdown,
        allow_lost: bool,
        min_readers: int,
    ) -> int:
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
        subset: bool = False,
        skip_others: bool = False,
    ) -> int:
        """Fills the tensors in place with the next version that is sent, or is being offered
        now; returns the version.

        With ``version`` earlier ones are passed over, and a later one raises ``RuntimeError``
        without touching the tensors. After any other error their contents are undefined until the
        next call. Threads that receive the same name take turns. What is sent and no rank of this
        side takes is a ``ValueError`` unless all its ranks say ``subset``. With ``skip_others``
        what is no tensor is left out instead of refused.
        """
        left = _Countdown(timeout)
        key = _Key(name, False)
        with self._turn(key, left):
            entries = self._entries(key, state_dict, skip_others)
            version = self._recv(key, entries, version, left, subset)
            entries.fill_padding()
            return version

    def _recv(
        self,
        key: _Key,
        entries: Entries,
        version: int | None,
        left: _Countdown,
        subset: bool,
    ) -> int:
        registered = self._registered.get(key)
        if registered is None or (registered.form, registered.subset) != (entries.form(), subset):
            self._register(key, entries, left, subset)
        elif (core := self._core()).moved(self._batch(key), self.local_name, entries.views):
            core.replace(self._batch(key), self.local_name, entries.views, left())
            self._hold(registered.handler, entries.tensors)
        self._last[key] = self._transfer(key, entries.views, version, left)
        return self._last[key]

    def publish(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        keep: int = 2,
        dtype: Any = None,
        on_full: str = "wait",
        patience: float = 5.0,
        timeout: float | None = 30.0,
        skip_others: bool = False,
    ) -> int:
        """Puts a copy of the tensors on the shelf as the next version, which is returned: they may
        change at once, whoever reads, and no reader need exist.

        Every rank of the side publishes the same versions in the same order; the default is the
        last one plus one, and a number is used up even if the call raises. A shelf keeps the last
        ``keep`` versions, floating point narrowed to ``dtype``. The first call for a name waits
        for the other ranks of the side. Later ones wait only for a slot: of a rank that is
        ``keep - 1`` versions behind, or of readers that hold every other one, for ``patience``
        seconds; then ``on_full="wait"`` waits on until ``timeout``, and ``"withdraw"`` takes the
        oldest from them: their pull begins again with the newest. With ``skip_others`` what is no
        tensor is left out instead of refused.
        """
        if on_full not in ("wait", "withdraw"):
            raise ValueError(f'on_full is "wait" or "withdraw", not {on_full!r}')
        if keep < 2:
            raise ValueError(f"keep is {keep}; a shelf keeps at least 2 versions")
        self._check_unverified()
        key, left = _Key(name, True, shelf=True), _Countdown(timeout)
        with self._turn(key, left):
            entries = self._entries(key, state_dict, skip_others)
            form = [*entries.form(), keep, dtype]
            registered = self._registered.get(key)
            if registered is None or registered.form != form:
                self._register_shelf(key, entries, form, left, keep=keep, dtype=dtype)
            try:
                self._last[key] = self._core().publish(
                    self._batch(key), self.local_name, entries.views, version, patience,
                    on_full == "withdraw", left(),
                )  # fmt: skip
            except Exception as error:
                self._end_if_stale(key, error)
                raise
            return self._last[key]

    def pull(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        newer_than: int | None = None,
        together: bool = True,
        progress: Callable[[int, int], None] | None = None,
        timeout: float | None = 30.0,
        subset: bool = False,
        skip_others: bool = False,
    ) -> int:
        """Fills the tensors in place with a version that the other side has published, all of it
        or none; returns the version.

        By default the newest that every rank this one reads from has, at once, or else the first.
        With ``newer_than`` a later one, or any that was published after all ranks registered
        anew. With ``version`` that one: ``VersionGoneError`` if it was recycled or skipped. What
        does not come any more because the publishers have closed is an ``EndOfStreamError``.
        After an error the contents of the tensors are undefined until the next call.
        ``progress(bytes_done, bytes_total)`` is called now and then. ``together``: all
        ranks of this side call it, and all return the same version, the newest that every one of
        them can have and has asked for; a rank that does not is named by the others'
        ``TimeoutError``. With ``together=False`` this rank pulls for itself. ``subset`` and
        ``skip_others`` are those of ``recv_state_dict``.
        """
        if version is not None and newer_than is not None:
            raise ValueError("version and newer_than are both given")
        self._check_unverified()
        key, left = _Key(name, False, shelf=True), _Countdown(timeout)
        with self._turn(key, left):
            entries = self._entries(key, state_dict, skip_others)
            form = [*entries.form(), subset]
            registered = self._registered.get(key)
            if registered is None or registered.form != form:
                self._register_shelf(key, entries, form, left, subset=subset)
            elif (core := self._core()).moved(self._batch(key), self.local_name, entries.views):
                core.replace(self._batch(key), self.local_name, entries.views, left())
                self._hold(registered.handler, entries.tensors)
            wish = version, newer_than, together
            try:
                self._last[key] = self._pull(key, entries, wish, progress, left)
            except ValueError:
                # What is published now does not fit: the next call looks anew.
                self._unregister(key, left)
                raise
            entries.fill_padding()
            return self._last[key]

    def newest(self, name: str, *, timeout: float | None = 30.0) -> int:
        """The newest version that ``pull`` would find now, or that this rank has published; 0 if
        there is none. No data moves. After the first ``pull`` or ``publish`` of the name.
        """
        for key in (_Key(name, True, shelf=True), _Key(name, False, shelf=True)):
            if key in self._registered:
                return self._core().newest(self._batch(key), self.local_name, timeout)
        raise ValueError(f'"{name}" was neither published nor pulled over this link')

    def versions(self, name: str, *, timeout: float | None = 30.0) -> dict[str, dict[int, int]]:
        """Which version each rank of each side last sent or has read, as far as this rank's agent
        has heard: ``{side: {rank: version}}``. 0 is none yet; a rank that is gone is not there.
        """
        for key in (_Key(name, True), _Key(name, False)):
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

    def _sender(self, key: _Key) -> str:
        sender = self.local_name if key.send else self.remote_name
        if sender is None or (self.remote_name is None and not key.shelf):
            raise ValueError(f'link "{self.local_name}" names no other side; give it a remote_name')
        return sender

    def _pair(self, key: _Key) -> str:
        sender = self._sender(key)
        return f"shelves of {sender}" if key.shelf else sender

    def _batch(self, key: _Key) -> str:
        # By the sender's name: whoever else receives from it finds the same one.
        batch = f"{self._sender(key)}/{key.name}"
        return f"shelf of {batch}" if key.shelf else batch

    @contextlib.contextmanager
    def _turn(self, key: _Key, left: _Countdown) -> Iterator[None]:
        """One call at a time for a name and direction: they share its registration and stages."""
        lock = self._turns.setdefault(key, threading.Lock())
        if not lock.acquire(blocking=False):
            # In a forked child, where the thread that has it is not, this raises.
            _ = self._core().agent_pid
            patience = left()
            seconds = -1 if patience is None else min(patience, threading.TIMEOUT_MAX)
            if not lock.acquire(timeout=seconds):
                doing = "sending" if key.send else "receiving"
                raise TimeoutError(
                    f'another thread is {doing} "{key.name}" over this link '
                    "and has not ended in time"
                )
        try:
            yield
        finally:
            lock.release()

    def _entries(self, key: _Key, state_dict: Mapping[Any, Any], skip_others: bool) -> Entries:
        try:
            return entries_of(state_dict, skip_others)
        except (TypeError, ValueError) as error:
            self._refuse(key, str(error)[:_LONGEST_REASON])
            raise

    def _refuse(self, key: _Key, why: str) -> None:
        """Tells the others, who would wait for this rank, that it has nothing that can be moved."""
        before = self._registered.pop(key, None)
        if before is not None:
            before.handler._back_soon = True
            before.handler.close(blocking=False)
        try:
            self._join_pair(key, blocking=False, timeout=_TELLING_TIME)
            self._core().refuse(
                self._batch(key), self.local_name, self._pair(key), key.send, why, _TELLING_TIME
            )
        except Exception as error:  # its caller is told something more important
            logger.debug('the others were not told about "%s": %s', key.name, error)

    def _join_pair(self, key: _Key, *, blocking: bool, timeout: float | None) -> None:
        pair = self._pair(key)
        if pair in self._pairs:
            return
        size = self.expected_world_size
        # Who publishes waits for no reader, and whoever reads a shelf need not find its worker.
        remote = "" if key.shelf and key.send else self.remote_name or ""
        self._core().init_pair(
            pair, self.local_name, remote, size, [size], [Replicate()], None, blocking, timeout,
            key.shelf,
        )  # fmt: skip
        if blocking:
            self._pairs.add(pair)

    def _register(
        self, key: _Key, entries: Entries, left: _Countdown, subset: bool = False
    ) -> _Registered:
        client = self._open_client()
        self._join_pair(key, blocking=True, timeout=left())
        self._unregister(key, left)
        pair = self._pair(key)
        stage: Stage | None = None
        if key.send:
            copy_into = self._core().copy_into
            stage = Stage(entries.locals, entries.views, self._turns[key], copy_into)
        handler = client._register(
            self._batch(key), stage.placed(entries.locals) if stage else entries.locals,
            [(pair, name) for name in entries.names], entries.shapes, role=self.local_name,
            verify=self._verify, layouts=entries.layouts, starts=entries.starts, pairs=[pair],
            versioned=(key.send, self._last.get(key, 0), subset, None),
            held=stage.placed(entries.tensors) if stage else entries.tensors, timeout=left(),
        )  # fmt: skip
        self._registered[key] = _Registered(handler, entries.form(), stage, subset)
        return self._registered[key]

    def _check_unverified(self) -> None:
        if self._verify != "off":
            raise ValueError("verify is for what is sent and received, not for what is published")

    def _register_shelf(
        self,
        key: _Key,
        entries: Entries,
        form: list[Any],
        left: _Countdown,
        *,
        keep: int = 0,
        dtype: Any = None,
        subset: bool = False,
    ) -> None:
        client = self._open_client()
        self._join_pair(key, blocking=True, timeout=left())
        self._unregister(key, left)
        pair = self._pair(key)
        handler = client._register(
            self._batch(key), entries.locals, [(pair, name) for name in entries.names],
            entries.shapes, role=self.local_name, verify="off", layouts=entries.layouts,
            starts=entries.starts, pairs=[pair],
            versioned=(key.send, self._last.get(key, 0), subset, keep),
            shelf_dtype=None if dtype is None else pool.dtype_name(dtype),
            held=[] if key.send else entries.tensors, timeout=left(),
        )  # fmt: skip
        self._registered[key] = _Registered(handler, form, None)

    def _pull(
        self,
        key: _Key,
        entries: Entries,
        wish: tuple[int | None, int | None, bool],
        progress: Callable[[int, int], None] | None,
        left: _Countdown,
    ) -> int:
        pulled = self._core().pull(
            self._batch(key), self.local_name, entries.views, *wish, progress is None, left()
        )
        while progress is not None:
            try:
                pulled.wait(min(_PROGRESS_EVERY, left() or _PROGRESS_EVERY))
                break
            except TimeoutError:
                progress(*pulled.progress())
                if left() == 0.0:
                    pulled.cancel("its timeout has passed")
                    with contextlib.suppress(TimeoutError):  # an agent that is stopped says nothing
                        pulled.wait(_DRAINING_TIME)
                    raise TimeoutError(f'pull of "{key.name}" timed out') from None
        return pulled.result(None)[3]

    def _unregister(self, key: _Key, left: _Countdown) -> None:
        """Its stage goes back to the system before another is made."""
        before = self._registered.pop(key, None)
        if before is None:
            return
        before.handler._back_soon = True
        before.handler.close(timeout=left())
        if before.stage is not None:
            before.stage = None
            pool.trim()

    def _hold(self, handler: BatchHandler, tensors: list[Any]) -> None:
        assert handler._registration is not None
        self._open_client()._held[handler._registration] = handler.batch_id, tensors

    def _transfer(
        self,
        key: _Key,
        views: Tensors,
        version: int | None,
        left: _Countdown,
        min_readers: int = 0,
    ) -> int:
        transfer = self._core().transfer(
            self._batch(key), key.send, self.local_name, views, True, version, left(), min_readers
        )
        return transfer.result(None)[3]

    def _end_if_stale(self, key: _Key, error: Exception) -> None:
        """Another sender is gone: the next call begins anew, together with the others."""
        registered = self._registered.pop(key, None) if getattr(error, "stale", False) else None
        if registered is not None:
            registered.handler._back_soon = True
            registered.handler.close(blocking=False)


class _Countdown:
    """What is left of a timeout."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())
