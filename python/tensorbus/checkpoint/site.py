"""What this process has at a store: a connection, an endpoint, and the versions that it holds."""

from __future__ import annotations

import atexit
import base64
import json
import os
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorbus.endpoint import Endpoint
from tensorbus.kvstore import connect

COMPONENT = "checkpoint"
LEASE_SECONDS = 5.0


@dataclass(frozen=True)
class Address:
    """Of a checkpoint: ``tensorbus://host:port/namespace/name``."""

    store: str
    name: str

    @classmethod
    def parse(cls, checkpoint_id: Any) -> Address:
        text = str(checkpoint_id)
        scheme, separator, rest = text.partition("://")
        parts = rest.split("/")
        if not separator or len(parts) != 3 or not all(parts):
            raise ValueError(
                f'a checkpoint is called "tensorbus://host:port/space/name", not {text!r}'
            )
        return cls(f"{scheme}://{parts[0]}/{parts[1]}", parts[2])

    @classmethod
    def fits(cls, checkpoint_id: Any) -> bool:
        try:
            cls.parse(checkpoint_id)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.store}/{self.name}"


@dataclass
class Site:
    """One per process and store; it lives as long as the process, as what it holds does."""

    url: str
    timeout: float
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    held: dict[str, dict[int, bytes]] = field(default_factory=dict)  # descriptors, by name, version

    def __post_init__(self) -> None:
        self.store = connect(self.url, timeout=self.timeout, component=COMPONENT)
        self.endpoint = Endpoint(self.store, name=f"checkpoints of pid {os.getpid()}")
        self._lease = self.store.lease(LEASE_SECONDS)

    def come(self) -> None:
        """From now on others see whether this process lives."""
        if not self._lease.alive:  # the process stood still for longer than that
            self._lease = self.store.lease(LEASE_SECONDS)
        self.store.set(f"here/{self.id}", "1", lease=self._lease)

    def is_here(self, member: str) -> bool:
        return self.store.exists(f"here/{member}")

    def record(self, name: str) -> dict[int, dict[str, Any]]:
        """What was saved under a name: versions, with who has saved them."""
        return decode_record(self.store.get(f"saved/{name}"))

    def publish(self, name: str, versions: Mapping[int, dict[str, Any]]) -> None:
        """Stays when this process is gone, so that readers learn who is missing."""
        self.store.set(
            f"saved/{name}", json.dumps({str(each): versions[each] for each in versions})
        )

    def hold(self, name: str, version: int, descriptor: bytes) -> None:
        self.held.setdefault(name, {})[version] = descriptor

    def drop(self, name: str, below: int) -> None:
        """Versions below this one."""
        versions = self.held.get(name, {})
        for version in [each for each in versions if each < below]:
            self.endpoint.release(versions.pop(version))

    def close(self) -> None:
        self.endpoint.close()
        self.store.close()


def decode_record(value: bytes | None) -> dict[int, dict[str, Any]]:
    """Empty for what nobody of ours has written."""
    try:
        read = json.loads(value or b"{}")
        return {
            int(version): {
                "contents": base64.b64decode(each["contents"]),
                "writers": {int(rank): str(own) for rank, own in each["writers"].items()},
            }
            for version, each in read.items()
        }
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}


def encode_entry(contents: bytes, writers: Mapping[int, str]) -> dict[str, Any]:
    return {
        "contents": base64.b64encode(contents).decode(),
        "writers": {str(rank): own for rank, own in writers.items()},
    }


_sites: dict[tuple[int, str], Site] = {}
_lock = threading.Lock()


def site_of(address: Address, timeout: float) -> Site:
    """A forked child has its own."""
    key = os.getpid(), address.store
    with _lock:
        if key not in _sites:
            _sites[key] = Site(address.store, timeout)
        return _sites[key]


def forget(checkpoint_id: str) -> None:
    """Gives back the memory of all versions that this process holds of a checkpoint."""
    address = Address.parse(checkpoint_id)
    site = _sites.get((os.getpid(), address.store))
    if site is not None:
        site.drop(address.name, max(site.held.get(address.name, {0: b""})) + 1)


@atexit.register
def _close_all() -> None:
    for (pid, _), site in list(_sites.items()):
        if pid == os.getpid():
            site.close()
