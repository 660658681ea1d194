"""Model weights by name and version, from the ranks of one side to those of others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from tensorbus import _core, pool
from tensorbus.bar import Bar
from tensorbus.errors import EndOfStreamError
from tensorbus.handles import PullHandle, SendHandle
from tensorbus.observe import Stats, profiled, stats_of
from tensorbus.stage import Places
from tensorbus.state_dict import Entries, entries_of

if TYPE_CHECKING:
    from tensorbus.client import TensorBusClient

_PROGRESS_EVERY = 0.05
_CLOSING_TIME = 30.0


class LastSend(NamedTuple):
    """How the last send of a name ended: which rank has ``"read"`` it, has ``"failed"`` or is
    ``"lost"``."""

    version: int
    readers: dict[int, str]


class PullStats(NamedTuple):
    """How the last version that was pulled over a link with ``delta=True`` got here."""

    version: int
    mode: str
    """``"delta"`` or ``"dense"``"""
    why: str
    """``"patch"``, or why all of the version was read: ``"no base"``, ``"dense is sooner"``, ..."""
    changed: float
    """Which share of the elements was in patches."""
    patch_bytes: int
    seconds: dict[str, float]
    """Until all sources had answered (``"ask"``), until all patches were here (``"fetch"``), until
    they were applied (``"apply"``), until the result was compared (``"verify"``)."""
    verified: bool
    """What was patched was compared with what the publishers have: see ``verify_every``."""


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

    Tensors on CUDA devices are moved like others, by an agent in this process (not yet run on
    a GPU: docs/device.md). A call takes what the current stream of the calling
    thread has been given so far, or ``stream``: an int, a torch stream, anything with
    ``__cuda_stream__``. When a call that receives returns, the bytes are in place for every stream.
    """

    def __init__(
        self,
        client: TensorBusClient,
        local_name: str,
        remote_name: str | None,
        expected_world_size: int,
        verify: str | None,
        delta: bool = False,
        delta_memory: int | None = None,
        verify_every: int = 0,
    ) -> None:
        self._client = client
        self._core = _core.BusLink(
            client._core, local_name, remote_name, expected_world_size, verify, delta, delta_memory,
            verify_every,
        )  # fmt: skip
        self._places = Places(self._core)
        # What the core was last told of a name, and as what.
        self._forms: dict[tuple[str, bool, bool], tuple[list[list[Any]], _core.LinkForm]] = {}
        self.local_name = local_name
        self.remote_name = remote_name
        self.expected_world_size = expected_world_size

    @overload
    def stats(self) -> Stats: ...
    @overload
    def stats(self, name: str) -> PullStats: ...
    def stats(self, name: str | None = None) -> Stats | PullStats:
        """The numbers of this link's rank, as ``tensorbus.stats()`` has them; nothing if its agent
        is a process of its own, which counts there. With a name, of a link with ``delta=True``: how
        the last version of that name that was pulled got here.
        """
        if name is None:
            return stats_of(self._client.namespace, self._client.agent_rank)
        stats = self._stats(name)
        if stats is None:
            raise ValueError(f'"{name}" was not pulled over a link with delta=True')
        return stats

    @profiled
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
        stream: Any = None,
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
        with self._turn(name, left, send=True) as call:
            state = _State(state_dict, skip_others, stream)
            return self._send(call, name, state, version, left, allow_lost, min_readers)

    def send_state_dict_async(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        timeout: float | None = 30.0,
        allow_lost: bool = False,
        min_readers: int = 0,
        skip_others: bool = False,
        stream: Any = None,
    ) -> SendHandle:
        """``send_state_dict`` while the caller goes on, once ``handle.staged.wait()`` has returned:
        from then on the tensors may change. Sends of a name go out in the order of their calls.

        Tensors that lie in the pool are read where they are, and may change when all have read:
        ``publish`` copies those, too.
        """
        left = _Countdown(timeout)
        call = self._open_core().begin(name, True, False)
        state = _State(state_dict, skip_others, stream)
        return SendHandle(
            call,
            lambda: self._send(call, name, state, version, left, allow_lost, min_readers),
        )

    def _send(
        self,
        call: _core.LinkCall,
        name: str,
        state: _State,
        version: int | None,
        left: _Countdown,
        allow_lost: bool,
        min_readers: int,
    ) -> int:
        entries = self._checked(call, state, left)
        form = self._form((name, True, False), entries)
        try:
            return self._open_core().send(
                call, form, entries.views, entries.tensors, version, left(), allow_lost,
                min_readers,
            )  # fmt: skip
        finally:
            self._places.note(name, call, entries)

    def last_send(self, name: str) -> LastSend:
        """Who has read what this rank last sent, as the last send of the name found when it
        ended."""
        sent = self._core.last_send(name)
        if sent is None:
            raise ValueError(f'"{name}" was not sent over this link')
        return LastSend(*sent)

    @profiled
    def recv_state_dict(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        timeout: float | None = 30.0,
        subset: bool = False,
        skip_others: bool = False,
        stream: Any = None,
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
        with self._turn(name, left, send=False) as call:
            entries = self._checked(call, _State(state_dict, skip_others, stream), left)
            form = self._form((name, False, False), entries)
            got = self._open_core().recv(
                call, form, entries.views, entries.tensors, version, left(), subset
            )
            entries.fill_padding()
            return got

    @profiled
    def publish(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        keep: int = 2,
        dtype: Any = None,
        delta: str = "off",
        on_full: str = "wait",
        patience: float = 5.0,
        timeout: float | None = 30.0,
        skip_others: bool = False,
        stream: Any = None,
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

        With ``delta="auto"`` readers over a link with ``delta=True`` get the changed values only,
        whenever that is sooner; with ``"always"`` whenever it can be.
        """
        if delta not in ("auto", "off", "always"):
            raise ValueError(f'delta is "auto", "off" or "always", not {delta!r}')
        if on_full not in ("wait", "withdraw"):
            raise ValueError(f'on_full is "wait" or "withdraw", not {on_full!r}')
        shelf_type = None if dtype is None else pool.dtype_name(dtype)
        left = _Countdown(timeout)
        with self._turn(name, left, send=True, shelf=True) as call:
            entries = self._checked(call, _State(state_dict, skip_others, stream), left)
            form = self._form((name, True, True), entries)
            return self._open_core().publish(
                call, form, entries.views, version, keep, shelf_type, patience,
                on_full == "withdraw", delta, left(),
            )  # fmt: skip

    @profiled
    def pull(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        newer_than: int | None = None,
        together: bool = True,
        progress: Callable[[int, int], None] | bool | None = None,
        timeout: float | None = 30.0,
        subset: bool = False,
        skip_others: bool = False,
        stream: Any = None,
        delta: bool | None = None,
    ) -> int:
        """Fills the tensors in place with a version that the other side has published, all of it
        or none; returns the version.

        By default the newest that every rank this one reads from has, at once, or else the first.
        With ``newer_than`` a later one, or any that was published after all ranks registered
        anew. With ``version`` that one: ``VersionGoneError`` if it was recycled or skipped. What
        does not come any more because the publishers have closed is an ``EndOfStreamError``.
        After an error the contents of the tensors are undefined until the next call.
        ``progress(bytes_done, bytes_total)`` is called now and then, and when all is read;
        ``True`` shows a bar on the standard error, if that is a terminal. ``together``: all
        ranks of this side call it, and all return the same version, the newest that every one of
        them can have and has asked for; a rank that does not is named by the others'
        ``TimeoutError``. With ``together=False`` this rank pulls for itself. ``subset`` and
        ``skip_others`` are those of ``recv_state_dict``. ``delta=False`` says that somebody has
        written to the tensors: nothing is patched this time.
        """
        if progress:
            handle = self.pull_async(
                name, state_dict, version=version, newer_than=newer_than, together=together,
                timeout=timeout, subset=subset, skip_others=skip_others, stream=stream, delta=delta,
            )  # fmt: skip
            if callable(progress):
                got = _watched(handle, progress)
                progress(*handle.progress)  # all of it, however soon that was
                return got
            with Bar(f"pull {name}") as bar:
                got = _watched(handle, bar)
                bar.fill()
                return got
        left = _Countdown(timeout)
        with self._turn(name, left, send=False, shelf=True) as call:
            state = _State(state_dict, skip_others, stream)
            return self._pull(call, name, state, version, newer_than, together, left, subset, delta)

    def pull_async(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        newer_than: int | None = None,
        together: bool = True,
        timeout: float | None = 30.0,
        subset: bool = False,
        skip_others: bool = False,
        stream: Any = None,
        delta: bool | None = None,
    ) -> PullHandle:
        """``pull`` while the caller goes on: a handle with ``result()``, ``done()``, ``cancel()``
        and ``progress``, that can be awaited. The tensors are the caller's again when it is done.
        """
        left = _Countdown(timeout)
        call = self._open_core().begin(name, False, True)
        state = _State(state_dict, skip_others, stream)
        return PullHandle(
            call,
            lambda: self._pull(
                call, name, state, version, newer_than, together, left, subset, delta
            ),
        )

    def _pull(
        self,
        call: _core.LinkCall,
        name: str,
        state: _State,
        version: int | None,
        newer_than: int | None,
        together: bool,
        left: _Countdown,
        subset: bool,
        delta: bool | None,
        part: str = "all",
        scratch: bool = False,
    ) -> int:
        entries = self._checked(call, state, left)
        form = self._form((name, False, True), entries)
        # First: nobody writes to what the next pull may patch.
        if part != "fetch":
            entries.fill_padding()
        return self._open_core().pull(
            call, form, entries.views, entries.tensors, version, newer_than, together, left(),
            subset, delta is False, part, scratch,
        )  # fmt: skip

    def fetch(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        version: int | None = None,
        newer_than: int | None = None,
        together: bool = True,
        timeout: float | None = 30.0,
        subset: bool = False,
        skip_others: bool = False,
        delta: bool | None = None,
        dense: str = "apply",
    ) -> Update:
        """The first part of a ``pull``, with its arguments, while an engine still serves with these
        tensors: they stay as they are until ``apply()`` of what is returned, which takes as long
        as there are changed values. What no patch can do is read from the publishers by
        ``apply()`` or, with ``dense="scratch"``, now, into other memory, as large as the tensors.
        Another ``fetch`` or ``pull`` of the name takes the place of this one.
        """
        if dense not in ("apply", "scratch"):
            raise ValueError(f'dense is "apply" or "scratch", not {dense!r}')
        left = _Countdown(timeout)
        with self._turn(name, left, send=False, shelf=True) as call:
            got = self._pull(
                call, name, _State(state_dict, skip_others, None), version, newer_than, together, left,
                subset, delta, "fetch", dense == "scratch",
            )  # fmt: skip
            stats = self._stats(name)
        return Update(self, name, state_dict, got, stats, subset, skip_others)

    def _apply(self, update: Update, timeout: float | None) -> int:
        left = _Countdown(timeout)
        with self._turn(update.name, left, send=False, shelf=True) as call:
            return self._pull(
                call, update.name, _State(update.state_dict, update.skip_others), update.version,
                None, False, left, update.subset, None, "apply",
            )  # fmt: skip

    async def follow(
        self,
        name: str,
        state_dict: Mapping[Any, Any],
        *,
        newer_than: int | None = None,
        together: bool = True,
        timeout: float | None = None,
        subset: bool = False,
        skip_others: bool = False,
        stream: Any = None,
    ) -> AsyncIterator[int]:
        """Fills the tensors with the newest version (above ``newer_than``), then with each newer
        one that is there when the body of the loop is done: ``async for version in
        link.follow(name, views)``. Waits ``timeout`` for each, and ends when the publishers have
        closed.
        """
        while True:
            try:
                newer_than = await self.pull_async(
                    name, state_dict, newer_than=newer_than, together=together, timeout=timeout,
                    subset=subset, skip_others=skip_others, stream=stream,
                )  # fmt: skip
            except EndOfStreamError:
                return
            yield newer_than

    def describe(
        self, name: str, *, timeout: float | None = 30.0
    ) -> dict[str, tuple[tuple[int, ...], Any]]:
        """What the other side publishes: shape and type of each whole tensor, by name. Waits for
        the first version. Types are torch's if this process has imported it, else names.
        """
        found = self._open_core().contents(name, timeout)
        return {each: (shape, pool.dtype_of(dtype)) for each, shape, dtype in found}

    def pull_new(
        self,
        name: str,
        names: Sequence[str] | None = None,
        *,
        version: int | None = None,
        newer_than: int | None = None,
        together: bool = True,
        timeout: float | None = 30.0,
    ) -> tuple[int, dict[str, Any]]:
        """Pulls into new whole tensors in the pool, of what ``describe`` says; with ``names`` only
        those. Returns the version and the tensors.
        """
        left = _Countdown(timeout)
        while True:
            found = self.describe(name, timeout=left())
            tensors = {each: pool.empty(*found[each]) for each in _chosen(name, found, names)}
            try:
                got = self.pull(
                    name, tensors, version=version, newer_than=newer_than, together=together,
                    timeout=left(), subset=names is not None,
                )  # fmt: skip
            except ValueError:
                # Something else may be published since then.
                if self.describe(name, timeout=left()) == found:
                    raise
            else:
                return got, tensors

    def _stats(self, name: str) -> PullStats | None:
        last = self._core.last_update(name)
        if last is None:
            return None
        version, why, elements, values, patch_bytes, *seconds, verified = last
        return PullStats(
            version,
            "delta" if why == "patch" else "dense",
            why,
            values / elements if elements else 0.0,
            patch_bytes,
            dict(zip(("ask", "fetch", "apply", "verify"), seconds, strict=True)),
            verified,
        )

    def newest(self, name: str, *, timeout: float | None = 30.0) -> int:
        """The newest version that ``pull`` would find now, or that this rank has published; 0 if
        there is none. No data moves. After the first ``pull`` or ``publish`` of the name.
        """
        return self._open_core().newest(name, timeout)

    def versions(self, name: str, *, timeout: float | None = 30.0) -> dict[str, dict[int, int]]:
        """Which version each rank of each side last sent or has read, as far as this rank's agent
        has heard: ``{side: {rank: version}}``. 0 is none yet; a rank that is gone is not there.
        """
        return self._open_core().versions(name, timeout)

    def close(self) -> None:
        """Frees what was registered; what other threads send or receive fails, and so do handles.
        The client stays open."""
        if not self._client._closed:
            self._core.close(_CLOSING_TIME)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_client(self) -> TensorBusClient:
        self._client._check_open()
        return self._client

    def _open_core(self) -> _core.BusLink:
        self._client._check_open()
        return self._core

    @contextlib.contextmanager
    def _turn(
        self, name: str, left: _Countdown, *, send: bool, shelf: bool = False
    ) -> Iterator[_core.LinkCall]:
        """One call at a time for a name and direction. Until then tensors may be replaced by
        ``share_``."""
        call = self._open_core().begin(name, send, shelf)
        try:
            self._core.take_turn(call, left())
            yield call
        finally:
            call.leave()

    def _checked(self, call: _core.LinkCall, state: _State, left: _Countdown) -> Entries:
        """Tells the others if there is nothing that can be moved."""
        if state.entries is None:
            assert state.problem is not None
            self._open_core().refuse(call, str(state.problem), left())
            raise state.problem
        return state.entries

    def _form(self, key: tuple[str, bool, bool], entries: Entries) -> _core.LinkForm:
        """The core's own is made once, while nothing changes."""
        said = entries.form()
        known = self._forms.get(key)
        if known is None or known[0] != said:
            known = self._forms[key] = said, _core.LinkForm(*said)
        return known[1]


class Update:
    """A version that was fetched and not applied yet: see ``Link.fetch``."""

    def __init__(
        self,
        link: Link,
        name: str,
        state_dict: Mapping[Any, Any],
        version: int,
        stats: PullStats | None,
        subset: bool,
        skip_others: bool,
    ) -> None:
        self._link = link
        self.name = name
        self.state_dict = state_dict
        self.version = version
        self.mode = "dense" if stats is None else stats.mode
        """``"delta"``: all that is needed is here; ``"dense"``: ``apply`` reads it."""
        self.bytes = 0 if stats is None else stats.patch_bytes
        """That were fetched."""
        self.subset = subset
        self.skip_others = skip_others

    def apply(self, *, timeout: float | None = 30.0) -> int:
        """Fills the tensors with the version, which is returned."""
        return self._link._apply(self, timeout)


class _State:
    """The tensors of a state dict, or what is wrong with it."""

    def __init__(self, state_dict: Mapping[Any, Any], skip_others: bool, stream: Any) -> None:
        self.entries: Entries | None = None
        self.problem: Exception | None = None
        try:
            self.entries = entries_of(state_dict, skip_others, stream)
        except (TypeError, ValueError) as error:
            self.problem = error


def _watched(handle: PullHandle, progress: Callable[[int, int], None]) -> int:
    """Whatever happens, nobody writes to the tensors afterwards."""
    try:
        while not handle.done():
            with contextlib.suppress(TimeoutError):
                handle.wait(_PROGRESS_EVERY)
            if not handle.done():
                progress(*handle.progress)
        return handle.result()
    finally:
        handle.cancel()
        handle.wait()


def _chosen(name: str, found: Mapping[str, Any], names: Sequence[str] | None) -> list[str]:
    missing = sorted(set(names or ()) - found.keys())
    if missing:
        raise ValueError(f'"{name}" has no tensors {", ".join(missing)}')
    return list(found if names is None else dict.fromkeys(names))


class _Countdown:
    """What is left of a timeout."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())
