"""A look at the commands that wait at an agent."""

from typing import NamedTuple

from tensorbus import _core


class QueuedCommand(NamedTuple):
    """A command that was accepted and is not over."""

    command_type: str
    context_id: str


class CommandQueue:
    """The agent's queue: commands that it has accepted and that are not over, in order."""

    def __init__(self, core: _core.BusClient) -> None:
        self._core = core

    def size(self, timeout: float | None = 30.0) -> int:
        return self._core.queue(timeout)[0]

    def is_empty(self, timeout: float | None = 30.0) -> bool:
        return self.size(timeout) == 0

    def peek(self, timeout: float | None = 30.0) -> QueuedCommand | None:
        """The oldest one; None if there is none."""
        first = self._core.queue(timeout)[1]
        return None if first is None else QueuedCommand(*first)
