"""Workers of an engine tell each other how a pull went, or what comes before all pulls.

An engine serves one version: no worker may load what another has not got. And vLLM takes no more
answers to a call than up to the first that failed; those of later workers it takes for answers to
the next call. So only the last worker tells of a failure.
"""

from __future__ import annotations

from tensorbus.kvstore import connect

_LEASE_SECONDS = 10.0


class Agreement:
    """``name`` is of these workers alone, who all call ``failures`` equally often."""

    def __init__(
        self, url: str, namespace: str | None, name: str, rank: int, world_size: int
    ) -> None:
        self._name, self._rank, self._world_size = name, rank, world_size
        self._number = 0
        self._store = None
        if world_size > 1:
            self._store = connect(url, namespace=namespace or "default", component="vllm")
            self._lease = self._store.lease(_LEASE_SECONDS)

    def failures(self, own: str, timeout: float) -> list[str]:
        """What went wrong, at whichever worker; ``own`` is empty if all is well.

        ``TimeoutError`` if a worker says nothing.
        """
        self._number += 1
        if self._store is None:
            return [own] if own else []
        # Nobody waits any more for what was said before the last.
        self._store.delete(self._key(self._number - 2, self._rank))
        self._store.set(self._key(self._number, self._rank), own, lease=self._lease)
        said = [
            self._store.wait_for_key(self._key(self._number, rank), timeout).decode()
            for rank in range(self._world_size)
        ]
        return [f"worker {rank}: {text}" for rank, text in enumerate(said) if text]

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _key(self, number: int, rank: int) -> str:
        return f"{self._name}/{number}/{rank}"
