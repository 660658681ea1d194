"""torch's StorageWriter."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from tensorbus import pool
from tensorbus.checkpoint.metadata import Contents, Place, encode, encode_value
from tensorbus.checkpoint.site import Address, Site, encode_entry, site_of


class TensorBusWriter(StorageWriter):
    """Holds the tensors in memory that other processes can read.

    For ``torch.distributed.checkpoint.save(state_dict, storage_writer=TensorBusWriter(id))``. The
    last ``keep`` versions can be loaded; with torch's own ``save`` one more stays in memory until
    the next, because only then it is known that the last was finished.
    """

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        keep: int = 1,
        timeout: float = 60.0,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least the last version is kept")
        self.keep, self.timeout = keep, timeout
        self.version = 0  # that was saved last
        self._address: Address | None = None
        self._rank = 0
        self.reset(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._address = Address.parse(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return Address.fits(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._rank = int(kwargs.get("rank") or 0)
        self._site.come()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        version = max(self._site.record(self._name), default=0) + 1
        return [dataclasses.replace(plan, storage_data=version) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self.version = int(plan.storage_data)
        site = self._site
        site.drop(self._name, self.version - self.keep)
        tensors = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        others = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
        copies = [_pooled(planner.resolve_data(item)) for item in tensors]
        descriptor = site.endpoint.expose(copies, frozen=True)
        site.hold(self._name, self.version, descriptor)
        who = {"rank": self._rank, "id": site.id, "tensors": descriptor}
        results = [
            WriteResult(item.index, copies[index].nbytes, who | {"index": index})
            for index, item in enumerate(tensors)
        ]
        results += [WriteResult(item.index, 0, who | _value(planner, item)) for item in others]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        contents, writers = Contents(metadata), {}
        for result in (each for own in results for each in own):
            said = result.storage_data
            writers[said["rank"]] = said["id"]
            contents.descriptors[said["rank"]] = said["tensors"]
            if "index" in said:
                key = result.index.fqn, tuple(result.index.offset or ())
                contents.places[key] = Place(said["rank"], said["index"])
            else:
                contents.values[result.index.fqn] = said["value"]
        self._publish(encode(contents), writers)

    def drop_older(self) -> None:
        """After a save that has ended everywhere."""
        self._site.drop(self._name, self.version - self.keep + 1)

    @property
    def _site(self) -> Site:
        return site_of(self._known_address, self.timeout)

    @property
    def _name(self) -> str:
        return self._known_address.name

    @property
    def _known_address(self) -> Address:
        if self._address is None:
            raise ValueError("give the checkpoint a name: tensorbus://host:port/namespace/name")
        return self._address

    def _publish(self, contents: bytes, writers: dict[int, str]) -> None:
        """The description may be long: it is read from this process as tensors are."""
        site = self._site
        data = pool.empty(len(contents), torch.uint8)
        data.copy_(torch.frombuffer(bytearray(contents), dtype=torch.uint8))
        descriptor = site.endpoint.expose([data], frozen=True)
        site.hold(f"{self._name} contents", self.version, descriptor)
        site.drop(f"{self._name} contents", self.version - self.keep + 1)
        known = site.record(self._name)
        entries = {
            version: encode_entry(each["contents"], each["writers"])
            for version, each in known.items()
            if version > self.version - self.keep
        }
        # This rank describes it, whether or not it has written anything itself.
        entries[self.version] = encode_entry(descriptor, {self._rank: site.id} | writers)
        site.publish(self._name, entries)


def _pooled(tensor: Any) -> Any:
    copy = pool.empty(tensor.shape, tensor.dtype)
    with torch.no_grad():
        copy.copy_(tensor)
    return copy


def _value(planner: SavePlanner, item: WriteItem) -> dict[str, Any]:
    """As it is in the state dict: torch would pickle it."""
    lookup = getattr(planner, "lookup_object", None)
    if lookup is None:
        raise ValueError(f'"{item.index.fqn}" is no tensor, and this planner does not show it')
    value = lookup(item.index)
    encode_value(item.index.fqn, value)
    return {"value": value}
