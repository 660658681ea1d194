"""Model weights by name and version, from the ranks of one side to those of others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorbus import _core, pool
from tensorbus._core import Replicate, Tensors
from tensorbus.errors import PeerLostError
from tensorbus.state_dict import Entries, entries_of

if TYPE_CHECKING:
    from tensorbus.client import BatchHandler, TensorBusClient


@dataclass
class _Registered:
    """A name that is registered in one direction."""

    handler: BatchHandler
    form: list[Any]
    stages: dict[int, Any]  # the link's own memory for tensors that are not read where they are


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
    ) -> int:
        """Offers a version and waits until everybody has read it; returns the version.

        Every rank of the side sends the same versions in the same order; the default is the last
        one plus one. Tensors of ``tensorbus.empty`` and ``share_`` are read where they are and
        must stay there; others are first copied into memory of the link. A reader that is gone
        makes it raise ``PeerLostError`` with ``.readers``, after all others have read, or with
        ``allow_lost`` is passed over. When another rank of this side is gone the call raises, and
        the next one waits until it is back.
        """
        left = _Countdown(timeout)
        key = name, True
        entries = entries_of(state_dict)
        registered = self._registered.get(key)
        if registered is None or registered.form != entries.form():
            registered = self._register(key, entries, _stages_for(entries.locals), left)
        try:
            views = _fill(registered.stages, entries)
            self._last[key] = self._transfer(key, views, version, left)
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
        next call.
        """
        left = _Countdown(timeout)
        key = name, False
        entries = entries_of(state_dict)
        registered = self._registered.get(key)
        if registered is None or registered.form != entries.form():
            self._register(key, entries, {}, left)
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
        """Frees what was registered. The client stays open."""
        for registered in self._registered.values():
            registered.handler.close()
        self._registered.clear()

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

    def _register(
        self, key: tuple[str, bool], entries: Entries, stages: dict[int, Any], left: _Countdown
    ) -> _Registered:
        client = self._open_client()
        pair = self._sender(key[1])
        if pair not in self._pairs:
            size = self.expected_world_size
            client._core.init_pair(
                pair, self.local_name, self.remote_name, size, [size], [Replicate()], None, True,
                left(),
            )  # fmt: skip
            self._pairs.add(pair)
        before = self._registered.pop(key, None)
        if before is not None:
            before.handler.close(timeout=left())
        handler = client._register(
            self._batch(key), _places(stages, entries.locals),
            [(pair, name) for name in entries.names], entries.shapes, role=self.local_name,
            verify=self._verify, layouts=entries.layouts,
            versioned=(key[1], self._last.get(key, 0)), held=_places(stages, entries.tensors),
            timeout=left(),
        )  # fmt: skip
        self._registered[key] = _Registered(handler, entries.form(), stages)
        return self._registered[key]

    def _hold(self, handler: BatchHandler, tensors: list[Any]) -> None:
        assert handler._registration is not None
        self._open_client()._held[handler._registration] = handler.batch_id, tensors

    def _transfer(
        self, key: tuple[str, bool], views: Tensors, version: int | None, left: _Countdown
    ) -> int:
        transfer = self._core().transfer(
            self._batch(key), key[1], self.local_name, views, True, version, left()
        )
        return transfer.result(None)[3]

    def _end_if_stale(self, key: tuple[str, bool], error: Exception) -> None:
        """Another sender is gone: the next call begins anew, together with the others."""
        if getattr(error, "stale", False):
            self._registered.pop(key).handler.close(blocking=False)


class _Countdown:
    """What is left of a timeout."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def _stages_for(tensors: list[Any]) -> dict[int, Any]:
    """Memory for copies of those that readers cannot map as they are."""
    return {
        index: pool.empty(tuple(tensor.shape), tensor.dtype)
        for index, tensor in enumerate(tensors)
        if not _core.is_pooled(tensor)
    }


def _places(stages: dict[int, Any], tensors: list[Any]) -> list[Any]:
    """What the agent knows: the stages, and the tensors that have none."""
    return [stages.get(index, tensor) for index, tensor in enumerate(tensors)]


def _fill(stages: dict[int, Any], entries: Entries) -> Tensors:
    """Copies what has a stage; returns where everything is now."""
    if not stages:
        return entries.views
    _core.copy_into(list(stages.values()), [entries.locals[index] for index in stages])
    return Tensors(_places(stages, entries.locals))
