"""An agent in Python: what ``tensorbus agent`` runs, for programs that start it themselves."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tensorbus import _core
from tensorbus.environment import own_namespace
from tensorbus.kvstore import StoreServer, connect
from tensorbus.paths import bind_address, command_queue_path, state_path

if TYPE_CHECKING:
    from tensorbus.kvstore import CoreStore

__all__ = ["TensorBusAgent", "logger"]

logger = logging.getLogger("tensorbus")


class TensorBusAgent:
    """The agent of one rank, for workers in other processes. A path of None is the default one.

    ``store_backend="tcp"``: the store at ``store_host:store_port``; rank 0 hosts it if nothing
    listens there yet, with a journal beside its state file, so that it is served again after a
    restart (``tensorbus store`` is the recommended way). ``store_backend="etcd"``: an etcd server.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store_host: str,
        store_port: int,
        lmdb_command_queue_path: str | None,
        lmdb_state_path: str | None,
        store_timeout: float = 3600.0,
        store_backend: str = "tcp",
        store_namespace: str | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank is {rank}; with world_size {world_size} it is 0 to {world_size - 1}"
            )
        if store_backend not in ("tcp", "etcd"):
            raise ValueError(f'store_backend is "tcp" or "etcd", not {store_backend!r}')
        self.rank = rank
        self.world_size = world_size
        self._queue_path = command_queue_path(rank, lmdb_command_queue_path)
        self._state_path = state_path(rank, lmdb_state_path)
        self._server: StoreServer | None = None
        self._store: CoreStore | None = None
        self._core: _core.BusAgent | None = None
        self._turn = threading.RLock()  # of whoever drives the agent
        self._running = False
        self._end: bool | None = None  # how to close when run() has ended
        scheme = "etcd" if store_backend == "etcd" else "tensorbus"
        space = own_namespace(store_namespace)
        try:
            if rank == 0 and store_backend == "tcp":
                self._server = self._host_store(store_host, store_port)
            self._store = connect(
                f"{scheme}://{store_host}:{store_port}", timeout=store_timeout, namespace=space
            )
            self._core = _core.BusAgent(
                self._store._core,
                rank,
                space,
                self._queue_path,
                self._state_path,
                bind_address(None),
                store_timeout,
            )
        except BaseException:
            self.close(destroy=False)
            raise

    @property
    def _journal(self) -> str:
        return self._state_path + ".store"

    def _host_store(self, host: str, port: int) -> StoreServer | None:
        try:
            return StoreServer(host, port, journal=self._journal)
        except RuntimeError as error:
            logger.debug("rank 0 does not host the store: %s", error)
            return None

    def run(self) -> None:
        """Serves until ``close()`` is called, by another thread or a signal handler, or Ctrl-C."""
        with self._turn:
            self._running = True
            try:
                self._open().run()
            finally:
                self._running = False
                if self._end is not None:
                    self.close(self._end)

    def step(self) -> None:
        """Does what there is to do now, for programs with a loop of their own."""
        with self._turn:
            self._open().step()

    def close(self, destroy: bool = True) -> None:
        """Ends what runs. ``destroy`` removes the files; else the next agent goes on from them."""
        if self._core is not None:
            self._core.stop()
        with self._turn:
            if self._running:  # called by a signal handler inside run()
                self._end = destroy
                return
            self._close(destroy)

    def _close(self, destroy: bool) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close(destroy)
        store, self._store = self._store, None
        if store is not None:
            store.close()
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            if destroy:
                Path(self._journal).unlink(missing_ok=True)

    def _open(self) -> _core.BusAgent:
        if self._core is None:
            raise RuntimeError("this agent is closed")
        return self._core

    def __enter__(self) -> TensorBusAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
