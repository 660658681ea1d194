"""What the two ends of a stream have alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorbus.endpoint import Endpoint
from tensorbus.kvstore import CoreStore
from tensorbus.streams.board import Board

if TYPE_CHECKING:
    from typing_extensions import Self


class End:
    store: CoreStore
    endpoint: Endpoint
    board: Board

    def close(self) -> None:
        """Others that wait for this end see it gone; what was not taken is taken back."""
        self.board.close()
        self.endpoint.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
