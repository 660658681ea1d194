"""The transport: what Ray asks for, in terms of one ``tensorbus.Endpoint`` per process.

Ray calls from its task threads, its system threads and its io thread; nothing here waits for
another process except where Ray expects it to.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    FetchRequest,
    TensorTransportManager,
    TensorTransportMetadata,
)

from tensorbus.endpoint import Read
from tensorbus.ray.process import failure, process

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.exceptions import RayDirectTransportError

_freezing: contextvars.ContextVar[bool] = contextvars.ContextVar("freezing", default=False)


@dataclass
class TensorBusMetadata(TensorTransportMetadata):
    """What the owner of a ref knows of its tensors. Whoever has it may read them."""

    descriptor: bytes = b""


@dataclass
class TensorBusFetch(FetchRequest):
    """A read under way. Dropping it cancels the read."""

    read: Read | None = None


class TensorBusTransport(TensorTransportManager):
    """``TENSORBUS``: torch tensors in CPU memory, or on CUDA devices (not yet run on a GPU).

    What a task returns on a device has been written by the time that the stream, which is current
    where Ray describes it, comes there.
    """

    NAME = "TENSORBUS"

    def tensor_transport_backend(self) -> str:
        return self.NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:  # noqa: ARG002
        return True

    def get_communicator_metadata(
        self,
        src_actor: Any,  # noqa: ARG002
        dst_actor: Any,  # noqa: ARG002
        backend: str | None = None,  # noqa: ARG002
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    # At the source.

    def extract_tensor_transport_metadata(
        self, obj_id: str, rdt_object: list[Any]
    ) -> TensorBusMetadata:
        meta = [self._form(index, tensor) for index, tensor in enumerate(rdt_object)]
        return TensorBusMetadata(
            tensor_meta=meta,
            tensor_device=self._device(rdt_object),
            descriptor=process().expose(obj_id, rdt_object, frozen=_freezing.get()),
        )

    def _form(self, index: int, tensor: Any) -> tuple[Any, Any]:
        import torch

        if not isinstance(tensor, torch.Tensor):
            raise _wrong_type(tensor)
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"tensor {index} is on {tensor.device}; {self.NAME} moves tensors in CPU memory "
                "or on CUDA devices"
            )
        if tensor.layout != torch.strided:
            raise ValueError(f"tensor {index} is {tensor.layout}; pass to_dense()")
        return tensor.shape, tensor.dtype

    def _device(self, tensors: list[Any]) -> str | None:
        """Of all of them, as Ray wants it."""
        kinds: list[str] = [tensor.device.type for tensor in tensors]
        other = next((index for index, kind in enumerate(kinds) if kind != kinds[0]), None)
        if other is not None:
            raise ValueError(
                f"tensor {other} is on {tensors[other].device}, tensor 0 on {tensors[0].device}; "
                "the tensors of one object are all in CPU memory or all on CUDA devices"
            )
        if kinds and kinds[0] != "cpu" and _freezing.get():
            raise ValueError("put_frozen is for tensors in CPU memory")
        return kinds[0] if kinds else None

    def garbage_collect(
        self,
        obj_id: str,
        tensor_transport_meta: TensorTransportMetadata,  # noqa: ARG002
        tensors: list[Any],  # noqa: ARG002
    ) -> None:
        process().release(obj_id)

    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError(f"{self.NAME} is one-sided: receivers read")

    # At the destination.

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,  # noqa: ARG002
        target_buffers: list[Any] | None = None,
    ) -> TensorBusFetch:
        if not isinstance(tensor_transport_metadata, TensorBusMetadata):
            raise self._foreign("metadata", obj_id, tensor_transport_metadata)
        meta = tensor_transport_metadata.tensor_meta
        if target_buffers is not None:
            self._check_targets(target_buffers, meta)
        with _errors():
            read = process().start_read(
                obj_id, tensor_transport_metadata.descriptor, target_buffers, self._torch(),
                None if target_buffers else self._new_on(tensor_transport_metadata.tensor_device),
            )  # fmt: skip
        return TensorBusFetch(obj_id=obj_id, tensors=[], read=read)

    def _foreign(self, what: str, obj_id: str, given: object) -> RayDirectTransportError:
        kind = type(given)
        return failure(
            f"object {obj_id} cannot be received: {self.NAME} was given {what} of another "
            f"transport ({kind.__module__}.{kind.__qualname__}); its sender must use {self.NAME} "
            "too, in the same version"
        )

    def _torch(self) -> bool:
        return True

    def _new_on(self, sent_from: str | None) -> str | None:
        """Where new tensors lie; None: in the pool."""
        import torch

        return "cuda" if sent_from == "cuda" and torch.cuda.is_available() else None

    def _check_targets(self, targets: list[Any], meta: list[tuple[Any, Any]]) -> None:
        if len(targets) != len(meta):
            raise ValueError(
                f"the object has {len(meta)} tensors, {len(targets)} targets are given"
            )
        for index, (target, (shape, dtype)) in enumerate(zip(targets, meta, strict=True)):
            if tuple(target.shape) != tuple(shape) or target.dtype != dtype:
                raise ValueError(
                    f"target {index} is {target.dtype} {tuple(target.shape)}, "
                    f"the tensor is {dtype} {tuple(shape)}"
                )

    def wait_fetch_complete(self, fetch_request: FetchRequest, timeout: float = -1) -> list[Any]:
        if not isinstance(fetch_request, TensorBusFetch) or fetch_request.read is None:
            raise self._foreign("a fetch", fetch_request.obj_id, fetch_request)
        read = fetch_request.read
        with _errors():
            try:
                return read.wait(None if timeout < 0 else timeout)
            except TimeoutError:
                if not read.done():
                    raise
            try:
                return read.wait(0)  # it ended at that moment
            except TimeoutError as error:  # not the caller's patience: the source was silent
                raise failure(str(error)) from error

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        fetch = self.fetch_multiple_tensors(
            obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
        )
        return self.wait_fetch_complete(fetch)

    def abort_transport(
        self,
        obj_id: str,
        communicator_metadata: CommunicatorMetadata,  # noqa: ARG002
    ) -> None:
        process().abort(obj_id)


class NumpyTransport(TensorBusTransport):
    """``TENSORBUS_NUMPY``: numpy arrays."""

    NAME = "TENSORBUS_NUMPY"

    def _form(self, index: int, tensor: Any) -> tuple[Any, Any]:  # noqa: ARG002
        import numpy as np

        if not isinstance(tensor, np.ndarray):
            raise _wrong_type(tensor)
        return tuple(tensor.shape), tensor.dtype

    def _device(self, tensors: list[Any]) -> str | None:
        return "cpu" if tensors else None

    def _torch(self) -> bool:
        return False

    def _new_on(self, sent_from: str | None) -> str | None:  # noqa: ARG002
        return None


def put_frozen(value: Any) -> ObjectRef[Any]:
    """As ``ray.put(value, _tensor_transport="TENSORBUS")``, and a promise: the tensors in ``value``
    are not written any more.

    Receivers on this host then map the memory instead of copying it; what they write stays theirs.
    Tensors that are not in the pool (``tensorbus.empty``, ``tensorbus.share_``) are copied into it
    once, here.
    """
    token = _freezing.set(True)
    try:
        return ray.put(value, _tensor_transport=TensorBusTransport.NAME)
    finally:
        _freezing.reset(token)


def stats() -> dict[str, Any]:
    """This process' side: reads by path (``alias``, ``mapped``, ``process_vm_readv``, ``packed``,
    ``network``), failed reads, open exposures and connections, bytes of the pool."""
    return process().stats()


@contextmanager
def _errors() -> Iterator[None]:
    """Ours as Ray's; a wrong call and a wait that is too short stay what they are."""
    try:
        yield
    except (ValueError, TypeError, TimeoutError):
        raise
    except (RuntimeError, OSError) as error:
        raise failure(str(error)) from error


def _wrong_type(tensor: Any) -> TypeError:
    kind = type(tensor)
    return TypeError(
        f"TENSORBUS carries torch tensors and TENSORBUS_NUMPY numpy arrays, "
        f"not {kind.__module__}.{kind.__qualname__}"
    )
