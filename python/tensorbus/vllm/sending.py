"""A trainer's half of an update, whatever drives it. Nothing here needs vLLM."""

from __future__ import annotations

import contextlib
import logging
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tensorbus import pool
from tensorbus.client import TensorBusClient
from tensorbus.environment import store_url

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("tensorbus")


class Client(Protocol):
    """How a trainer calls an engine: vLLM's ``VLLMWeightSyncClient``. One that also has ``pause()``
    and ``resume()`` is paused during updates in place, and stays so after one that failed."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...
    def start_weight_update(self) -> None: ...
    def update_weights(self, update_info: Any) -> None: ...
    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


@dataclass
class _Engine:
    client: Client
    init_info: dict[str, Any]
    joined: bool = False

    def join(self) -> None:
        self.client.init_weight_transfer_engine(self.init_info | {"join": uuid.uuid4().hex[:12]})
        self.joined = True

    def update(self, version: int) -> None:
        """An engine that fails may have been started anew: it joins again before the next."""
        if not self.joined:
            self.join()
        self.joined = False
        # Weights that a failed update in place has left must not be served.
        pauses = self.init_info["mode"] != "staged" and hasattr(self.client, "pause")
        if pauses:
            self.client.pause()  # type: ignore[attr-defined]
        self._start()
        try:
            self.client.update_weights({"version": version})
        except Exception:
            # One worker tells of a failure; at the others the update is still open.
            with contextlib.suppress(Exception):
                self.client.finish_weight_update()
            raise
        self.client.finish_weight_update(str(version))
        if pauses:
            self.client.resume()  # type: ignore[attr-defined]
        self.joined = True

    def _start(self) -> None:
        try:
            self.client.start_weight_update()
        except Exception as error:
            # A trainer that was killed may have left an update open, which is ended so.
            try:
                self.client.finish_weight_update()
            except Exception:
                raise error from None
            self.client.start_weight_update()


class EngineSender:
    """Publishes the weights of ``world_size`` trainer ranks, each with a sender of its own, and has
    engines take them.

    What is published is on a shelf: the tensors may change as soon as ``send`` has copied them, and
    an engine that starts later loads the newest version (``--load-format tensorbus``). ``name``
    and ``sender`` are by what engines find it, ``dtype`` the type of floating point that they
    serve. ``mode`` is how engines take it: see docs/plugins.md.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        namespace: str | None = None,
        name: str = "policy",
        sender: str = "trainer",
        rank: int = 0,
        world_size: int = 1,
        dtype: Any = None,
        mode: str = "staged",
        verify: str = "off",
        keep: int = 2,
        timeout: float = 60.0,
        bind: str | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"trainer rank {rank} of {world_size}")
        self._url = store_url(store)
        self._name, self._sender, self._timeout = name, sender, timeout
        self._rank, self._world_size = rank, world_size
        self._dtype, self._mode, self._verify, self._keep = dtype, mode, verify, keep
        self._bus = TensorBusClient.embedded(self._url, namespace=namespace, bind=bind)
        self._namespace = namespace
        self._link = self._bus.link(sender, None, world_size, verify=verify)
        self._engines: list[_Engine] = []

    def join(self, client: Client, described: Iterable[Any] = (), *, side: str = "engine") -> None:
        """One more engine, on rank 0; others do nothing. ``described`` are the tensors to come
        (``WeightSource.metadata()``), for modes other than ``"staged"``."""
        if self._rank != 0:
            return
        where: dict[str, Any] = {
            "store": self._url, "namespace": self._namespace, "name": self._name,
            "sender": self._sender, "side": side, "mode": self._mode, "verify": self._verify,
            "timeout": self._timeout,
        }  # fmt: skip
        tensors = [] if self._mode == "staged" else list(described)
        where["names"] = [each.name for each in tensors]
        where["dtype_names"] = [
            pool.dtype_name(each.dtype).removeprefix("torch.") for each in tensors
        ]
        where["shapes"] = [list(each.shape) for each in tensors]
        engine = _Engine(client, where)
        engine.join()
        self._engines.append(engine)

    def leave(self, client: Client) -> None:
        """An engine that is updated no more."""
        self._engines = [each for each in self._engines if each.client is not client]

    def send(self, tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> int:
        """On every rank; on rank 0 it returns when all engines serve the version, which it returns.

        ``tensors`` is a state dict, of which each rank has its shards, or an iterator of whole
        tensors that every rank goes through, and of which each publishes its share. An engine that
        fails is named after the others have been updated, and joins again at the next send.
        """
        own = tensors if isinstance(tensors, Mapping) else self._share(tensors)
        version = self._link.publish(
            self._name, own, dtype=self._dtype, keep=self._keep, timeout=self._timeout
        )
        if self._engines:
            _raise_first(self._update_all(version))
        return version

    def close(self) -> None:
        self._link.close()
        self._bus.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _update_all(self, version: int) -> list[BaseException]:
        """At the same time; what went wrong."""
        with ThreadPoolExecutor(len(self._engines), "tensorbus update") as threads:
            updates = [threads.submit(each.update, version) for each in self._engines]
        return [error for each in updates if (error := each.exception()) is not None]

    def _share(self, tensors: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Copies: an iterator may use the memory of a tensor for the next."""
        share: dict[str, Any] = {}
        for number, (name, tensor) in enumerate(tensors):
            if number % self._world_size == self._rank and tensor is not None:
                share[name] = tensor.detach().to("cpu", copy=True)
        return share


def _raise_first(errors: Sequence[BaseException]) -> None:
    if not errors:
        return
    for other in errors[1:]:
        said = f"another engine: {type(other).__name__}: {other}"
        if sys.version_info >= (3, 11):
            errors[0].add_note(said)
        else:
            logger.error(said)
    raise errors[0]
