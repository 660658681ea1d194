"""The bus on Ray: every actor of a group gets the agent of its rank, on a thread of its process."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from tensorbus.client import TensorBusClient
from tensorbus.kvstore import CoreStore, StoreServer, connect
from tensorbus.ray.process import on_network

_joined: tuple[str, TensorBusClient, CoreStore] | None = None  # in an actor: of which group


def client() -> TensorBusClient:
    """In an actor of an ``AgentGroup``: its client, connected to the agent of its rank."""
    if _joined is None:
        raise RuntimeError("this process has no agent: tensorbus.ray.agents([...]) gives it one")
    return _joined[1]


class AgentGroup:
    """Agents in Ray actors; rank = position in ``actors``. A context manager."""

    def __init__(self, actors: Sequence[Any], namespace: str, server: StoreServer | None) -> None:
        self.actors = list(actors)
        self.namespace = namespace
        self._server = server

    def close(self, timeout: float = 30.0) -> None:
        """Closes every client and its agent, and the store if it is this group's own. Agents of
        actors that are dead, or busy for all of the time, end with their actors."""
        leaving = [actor.__ray_call__.remote(_leave, self.namespace) for actor in self.actors]
        self.actors = []
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=timeout)
        if self._server is not None:
            self._server.stop()
            self._server = None

    def __enter__(self) -> AgentGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def agents(
    actors: Sequence[Any],
    *,
    store: str | None = None,
    namespace: str | None = None,
    timeout: float = 60.0,
) -> AgentGroup:
    """Gives every actor an agent of the bus; in them ``tensorbus.ray.client()`` is its client.

    Both sides of every pair belong to one group. ``store`` is the URL of a store that all of them
    reach; without it this process serves one, with a random token, as long as the group is open.
    """
    for rank, actor in enumerate(actors):
        if not isinstance(actor, ActorHandle):
            raise TypeError(f"rank {rank} is {actor!r:.100}, not an actor")
        if actor in actors[:rank]:
            raise ValueError(f"rank {rank} is the actor of rank {actors.index(actor)}: one each")
    token = None
    server = None
    if store is None:
        token = secrets.token_hex(16)
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        server = StoreServer(host, 0, token=token)
        store = server.url
    space = namespace or f"ray-{secrets.token_hex(8)}"
    group = AgentGroup(actors, space, server)
    joining = [
        # In half of the time, so that its reason is heard.
        actor.__ray_call__.remote(_join, store, rank, space, token, timeout / 2)
        for rank, actor in enumerate(actors)
    ]
    try:
        _, late = ray.wait(joining, num_returns=len(joining), timeout=timeout)
        ray.get([ref for ref in joining if ref not in late])
        if late:
            ranks = [joining.index(ref) for ref in late]
            raise TimeoutError(f"the actors of ranks {ranks} did not answer in {timeout:g} s")
    except BaseException:
        group.close(timeout=5.0)
        raise
    return group


def _join(_: Any, url: str, rank: int, namespace: str, token: str | None, timeout: float) -> None:
    global _joined
    if _joined is not None:
        raise RuntimeError("this actor has an agent already; close the group that it belongs to")
    store = connect(url, namespace=namespace, token=token, timeout=timeout)
    try:
        client = on_network(
            lambda bind: TensorBusClient.embedded(store, rank, namespace, bind=bind)
        )
        _joined = namespace, client, store
    except BaseException:
        store.close()
        raise


def _leave(_: Any, namespace: str) -> None:
    global _joined
    if _joined is None or _joined[0] != namespace:
        return
    _, client, store = _joined
    _joined = None
    client.close()
    store.close()
