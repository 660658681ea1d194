"""torch's StorageReader."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from tensorbus.checkpoint.metadata import Contents, decode
from tensorbus.checkpoint.site import Address, Site, decode_record, site_of
from tensorbus.errors import PeerLostError, VersionGoneError, WithdrawnError

# What one read takes.
PARTS_AT_A_TIME = 256
OWN_ERRORS = PeerLostError | TimeoutError | ValueError | VersionGoneError | WithdrawnError


class TensorBusReader(StorageReader):
    """Reads what ``TensorBusWriter`` holds.

    For ``torch.distributed.checkpoint.load(state_dict, storage_reader=TensorBusReader(id))``. All
    ranks read the same version.
    """

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        version: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.wanted, self.timeout = version, timeout
        self.version = 0  # that is being read
        self.bytes_read = 0
        self._address: Address | None = None
        self._writers: dict[int, str] = {}
        self._contents: Contents | None = None
        self.reset(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._contents = None
        if checkpoint_id is not None:
            self._address = Address.parse(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return Address.fits(checkpoint_id)

    # Without **kwargs: torch would ask again, for what one rank has saved alone.
    def read_metadata(self) -> Metadata:
        return self.find().metadata

    def find(self) -> Contents:
        """The version that is wanted, or the newest. Waits for it."""
        if self._contents is None:
            end = time.monotonic() + self.timeout
            while self._contents is None:
                versions = self._wait_for_record(end)
                chosen = max(versions) if self.wanted is None else self.wanted
                # A newer one may take its place while it is looked at.
                with contextlib.suppress(WithdrawnError):
                    self._contents = self._read_contents(versions, chosen)
        return self._contents

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=self.version)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Ranks that looked earlier may have found an older one."""
        newest = max(int(plan.storage_data) for plan in plans)
        return [dataclasses.replace(plan, storage_data=newest) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        self._take_version(int(plan.storage_data))
        contents = self.find()
        by_rank: dict[int, list[tuple[int, ReadItem]]] = {}
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, _saved(contents.values[item.storage_index.fqn]))
            else:
                place = contents.places[_key(item)]
                by_rank.setdefault(place.rank, []).append((place.index, item))
        for rank, items in by_rank.items():
            for first in range(0, len(items), PARTS_AT_A_TIME):
                self._read_items(rank, items[first : first + PARTS_AT_A_TIME], planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @property
    def _known_address(self) -> Address:
        if self._address is None:
            raise ValueError("give the checkpoint's name: tensorbus://host:port/namespace/name")
        return self._address

    @property
    def _site(self) -> Site:
        return site_of(self._known_address, self.timeout)

    def _wait_for_record(self, end: float) -> dict[int, dict[str, Any]]:
        """With the version that is wanted."""
        address = self._known_address
        with self._site.store.watch(f"saved/{address.name}", current=True) as watch:
            while True:
                try:
                    if time.monotonic() > end:
                        raise TimeoutError
                    event = watch.next(end - time.monotonic())
                except TimeoutError:
                    what = "" if self.wanted is None else f"version {self.wanted} of "
                    raise TimeoutError(
                        f"{what}{address} was not saved in {self.timeout} s"
                    ) from None
                versions = decode_record(event.value)
                if event.key != f"saved/{address.name}" or not versions:
                    continue
                if self.wanted is None or self.wanted in versions:
                    return versions
                if self.wanted < max(versions):
                    raise VersionGoneError(
                        f"version {self.wanted} of {address} is not kept; there are "
                        f"{', '.join(map(str, sorted(versions)))}"
                    )

    def _read_contents(self, versions: dict[int, dict[str, Any]], chosen: int) -> Contents:
        entry = versions[chosen]
        self.version, self._writers = chosen, entry["writers"]
        self._look_for_losses()
        (data,) = self._read(entry["contents"], None, None)
        return decode(bytes(data.numpy()))

    def _take_version(self, version: int) -> None:
        if version == self.version and self._contents is not None:
            return
        self.wanted, self._contents = version, None
        self.find()

    def _look_for_losses(self) -> None:
        lost = [rank for rank, own in self._writers.items() if not self._site.is_here(own)]
        if lost:
            raise PeerLostError(
                f"version {self.version} of {self._known_address} went with those who saved it: "
                f"{_ranks(lost)} {'is' if len(lost) == 1 else 'are'} gone"
            )

    def _read_items(
        self, rank: int, items: list[tuple[int, ReadItem]], planner: LoadPlanner
    ) -> None:
        targets = [planner.resolve_tensor(item).detach() for _, item in items]
        places = [each if each.device.type == "cpu" else _on_cpu(each) for each in targets]
        parts = [(index, tuple(item.storage_offsets)) for index, item in items]
        assert self._contents is not None
        self._read(self._contents.descriptors[rank], places, parts)
        for (_, item), target, place in zip(items, targets, places, strict=True):
            if place is not target:
                target.copy_(place)
            planner.commit_tensor(item, target)
            self.bytes_read += place.nbytes

    def _read(self, descriptor: bytes, into: Any, parts: Any) -> list[Any]:
        try:
            return self._site.endpoint.read(descriptor, into, parts=parts, timeout=self.timeout)
        except (ConnectionError, PeerLostError) as error:
            self._look_for_losses()
            raise PeerLostError(
                f"version {self.version} of {self._known_address}: {error}"
            ) from error


def _key(item: ReadItem) -> tuple[str, tuple[int, ...]]:
    return item.storage_index.fqn, tuple(item.storage_index.offset or ())


def _on_cpu(tensor: Any) -> Any:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _saved(value: Any) -> io.BytesIO:
    """torch's planner unpickles what it is given: it gets what this process has pickled."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))


@contextlib.contextmanager
def raise_own_error() -> Iterator[None]:
    """torch wraps what a rank raised: callers want the error itself."""
    try:
        yield
    except CheckpointException as wrapped:
        for error, _ in wrapped.failures.values():
            if isinstance(error, OWN_ERRORS):
                raise error from wrapped
        raise
