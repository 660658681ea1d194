"""Checkpoints from a healthy replica to one that comes back, for torchft.

>>> Manager(..., checkpoint_transport=tensorbus.torchft.TensorBusTransport("tensorbus://host:29500"))

The sender's tensors are read where they are, while it allows that; the receiver gets its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tensorbus.checkpoint.metadata import decode_value, encode_value
from tensorbus.dtensor import local_parts
from tensorbus.endpoint import Endpoint
from tensorbus.environment import store_url
from tensorbus.errors import CancelledError, PeerLostError, WithdrawnError
from tensorbus.frameworks import check_interface, load
from tensorbus.kvstore import connect

_base = load("tensorbus.torchft", "torchft.checkpointing.transport", "torchft", "torchft")
check_interface(
    "tensorbus.torchft",
    _base.CheckpointTransport,
    "the torchft of October 2026",
    {
        "metadata": [],
        "send_checkpoint": ["dst_ranks", "step", "state_dict", "timeout"],
        "disallow_checkpoint": [],
        "recv_checkpoint": ["src_rank", "metadata", "step", "timeout"],
        "shutdown": ["wait"],
    },
)
_LEASE_SECONDS = 5.0


class TensorBusTransport(_base.CheckpointTransport):  # type: ignore[misc, name-defined]
    """Beside tensors a state dict may hold dictionaries, lists, tuples, numbers, texts, bytes."""

    def __init__(
        self, store: str | None = None, *, name: str = "", bind: str | None = None
    ) -> None:
        self._url = store_url(store)
        self._id = uuid.uuid4().hex
        self._store = connect(self._url, component="torchft")
        self._endpoint = Endpoint(self._store, name=name or "torchft", bind=bind)
        self._lease = self._store.lease(_LEASE_SECONDS)
        self._sent: tuple[int, bytes] | None = None

    def metadata(self) -> str:
        return json.dumps({"store": self._url, "id": self._id})

    def send_checkpoint(
        self,
        dst_ranks: list[int],  # noqa: ARG002
        step: int,
        state_dict: Any,
        timeout: timedelta,  # noqa: ARG002
    ) -> None:
        """Returns at once; the tensors are read until ``disallow_checkpoint``."""
        self.disallow_checkpoint()
        tensors: list[Any] = []
        tree = encode_tree(state_dict, tensors)
        descriptor = self._endpoint.expose(tensors)
        self._sent = step, descriptor
        text = base64.b64encode(descriptor).decode()
        record = json.dumps({"tree": tree, "tensors": text})
        self._store.set(f"{self._id}/{step}", record, lease=self._lease)

    def disallow_checkpoint(self) -> None:
        if self._sent is not None:
            step, descriptor = self._sent
            self._sent = None
            self._store.delete(f"{self._id}/{step}")
            self._endpoint.release(descriptor)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        end = time.monotonic() + timeout.total_seconds()
        source = f"the checkpoint of step {step} from rank {src_rank}"
        try:
            key = f"{json.loads(metadata)['id']}/{step}"
            record = json.loads(self._store.wait_for_key(key, timeout=timeout.total_seconds()))
            left = max(0.0, end - time.monotonic())
            tensors = self._endpoint.read(base64.b64decode(record["tensors"]), timeout=left)
        except TimeoutError as error:
            raise TimeoutError(f"{source} timed out: {error}") from error
        except (ConnectionError, WithdrawnError) as error:
            raise PeerLostError(f"{source} is not there any more: {error}") from error
        return decode_tree(record["tree"], tensors)

    def shutdown(self, wait: bool = True) -> None:  # noqa: ARG002
        with contextlib.suppress(CancelledError):  # it was closed before
            self.disallow_checkpoint()
        self._endpoint.close()
        self._store.close()


# A state dict as JSON, its tensors by their positions: nothing is unpickled.


def encode_tree(node: Any, tensors: list[Any], where: str = "state_dict") -> Any:
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(node, DTensor):
        tensors.append(local_parts([node])[0].detach())
        return {"dtensor": len(tensors) - 1, "spec": _encoded_spec(node)}
    if isinstance(node, torch.Tensor):
        tensors.append(node.detach())
        return {"tensor": len(tensors) - 1}
    if isinstance(node, dict):
        items = [
            [_key(key, where), encode_tree(each, tensors, f"{where}[{key!r}]")]
            for key, each in node.items()
        ]
        return {"dict": items}
    if isinstance(node, list | tuple) and type(node) in (list, tuple):
        items = [encode_tree(each, tensors, f"{where}[{index}]") for index, each in enumerate(node)]
        return {type(node).__name__: items}
    return encode_value(where, node)


def decode_tree(node: dict[str, Any], tensors: Sequence[Any]) -> Any:
    if "dtensor" in node:
        return _decoded_dtensor(node["spec"], tensors[node["dtensor"]])
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "dict" in node:
        return {key: decode_tree(each, tensors) for key, each in node["dict"]}
    if "list" in node:
        return [decode_tree(each, tensors) for each in node["list"]]
    if "tuple" in node:
        return tuple(decode_tree(each, tensors) for each in node["tuple"])
    return decode_value(node)


def _key(key: Any, where: str) -> str | int:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise ValueError(f"{where} has the key {key!r:.100}; keys are texts and whole numbers")


def _encoded_spec(tensor: Any) -> dict[str, Any]:
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names
    return {
        "device": mesh.device_type,
        "mesh": list(mesh.mesh.shape),  # of no dimension for a mesh that is one rank
        "ranks": mesh.mesh.reshape(-1).tolist(),
        "names": None if names is None else list(names),
        "placements": [_encoded_placement(each) for each in tensor.placements],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
    }


def _encoded_placement(placement: Any) -> list[Any]:
    if placement.is_shard() and type(placement).__name__ == "Shard":
        return ["shard", placement.dim]
    if placement.is_replicate():
        return ["replicate"]
    raise ValueError(f"a DTensor with the placement {placement} cannot be sent")


def _decoded_dtensor(spec: dict[str, Any], local: Any) -> Any:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    ranks = torch.tensor(spec["ranks"], dtype=torch.int).reshape(spec["mesh"])
    names = None if spec["names"] is None else tuple(spec["names"])
    mesh = DeviceMesh(spec["device"], ranks, mesh_dim_names=names, _init_backend=False)
    placements = tuple(
        Shard(each[1]) if each[0] == "shard" else Replicate() for each in spec["placements"]
    )
    meta = TensorMeta(torch.Size(spec["shape"]), tuple(spec["stride"]), local.dtype)
    # Not from_local: it leaves out what a rank has that is not part of the mesh.
    return DTensor(local, DTensorSpec(mesh, placements, meta), requires_grad=False)  # type: ignore[no-untyped-call]
