"""The signatures of verl 0.9.1."""

from abc import ABC, abstractmethod


class CheckpointEngineRegistry:
    _registry: dict[str, type] = {}  # noqa: RUF012

    def register(backend: str):
        def wrapper(cls):
            CheckpointEngineRegistry._registry[backend] = cls
            return cls

        return wrapper

    @classmethod
    def new(cls, backend, *args, **kwargs):
        return cls._registry[backend](*args, **kwargs)


class CheckpointEngine(ABC):
    wire_format = "named_tensors"

    @abstractmethod
    def prepare(self): ...

    @classmethod
    @abstractmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata): ...

    @abstractmethod
    def init_process_group(self, **kwargs): ...

    @abstractmethod
    def finalize(self): ...

    @abstractmethod
    async def send_weights(self, weights, global_steps=None): ...

    @abstractmethod
    async def receive_weights(self, global_steps=None): ...
