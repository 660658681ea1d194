"""The signatures of torchft-nightly 2026.10.26."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

T = TypeVar("T")


class CheckpointTransport(Generic[T], ABC):
    @abstractmethod
    def metadata(self): ...

    @abstractmethod
    def send_checkpoint(self, dst_ranks, step, state_dict, timeout): ...

    def disallow_checkpoint(self): ...

    @abstractmethod
    def recv_checkpoint(self, src_rank, metadata, step, timeout): ...

    def shutdown(self, wait=True): ...
