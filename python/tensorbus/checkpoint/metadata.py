"""What a checkpoint holds, as JSON: nothing that is read from others is unpickled."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

FORMAT = 1


@dataclass
class Place:
    """Where a chunk lies: the writer's rank, and its position in what that rank exposes."""

    rank: int
    index: int


@dataclass
class Contents:
    """All that a reader must know of one version."""

    metadata: Metadata
    descriptors: dict[int, bytes] = field(default_factory=dict)  # by rank
    places: dict[tuple[str, tuple[int, ...]], Place] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)  # what is no tensor


def encode(contents: Contents) -> bytes:
    metadata = contents.metadata
    tensors, others = {}, []
    for name, each in metadata.state_dict_metadata.items():
        if isinstance(each, TensorStorageMetadata):
            tensors[name] = _encoded_tensor(each)
        else:
            others.append(name)
    return json.dumps(
        {
            "format": FORMAT,
            "tensors": tensors,
            "others": others,
            "paths": _encoded_paths(metadata.planner_data),
            "writers": {str(rank): _text(each) for rank, each in contents.descriptors.items()},
            "places": [
                [name, list(start), place.rank, place.index]
                for (name, start), place in contents.places.items()
            ],
            "values": {name: encode_value(name, value) for name, value in contents.values.items()},
        }
    ).encode()


def decode(data: bytes) -> Contents:
    """ValueError for what is no such description."""
    try:
        return _decode(json.loads(data))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"this describes no checkpoint: {error!r:.200}") from error


def _decode(read: dict[str, Any]) -> Contents:
    if read["format"] != FORMAT:
        raise ValueError(f"its format is {read['format']}, this release reads {FORMAT}")
    metadata: dict[str, Any] = {name: BytesStorageMetadata() for name in read["others"]}
    metadata |= {name: _decoded_tensor(each) for name, each in read["tensors"].items()}
    paths = read["paths"]
    planner_data = None if paths is None else {name: tuple(each) for name, each in paths.items()}
    return Contents(
        Metadata(metadata, planner_data=planner_data),
        {int(rank): base64.b64decode(each) for rank, each in read["writers"].items()},
        {
            (name, tuple(map(int, start))): Place(int(rank), int(index))
            for name, start, rank, index in read["places"]
        },
        {name: decode_value(each) for name, each in read["values"].items()},
    )


def _encoded_tensor(tensor: TensorStorageMetadata) -> dict[str, Any]:
    return {
        "dtype": str(tensor.properties.dtype).removeprefix("torch."),
        "size": list(tensor.size),
        "chunks": [[list(each.offsets), list(each.sizes)] for each in tensor.chunks],
    }


def _decoded_tensor(read: dict[str, Any]) -> TensorStorageMetadata:
    dtype = getattr(torch, read["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"there is no type {read['dtype']}")
    chunks = [
        ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        for offsets, sizes in read["chunks"]
    ]
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(read["size"]), chunks)


def _encoded_paths(planner_data: Any) -> dict[str, list[str | int]] | None:
    """How torch's planner has flattened nested dictionaries."""
    if planner_data is None:
        return None
    known = isinstance(planner_data, dict) and all(
        isinstance(name, str) and all(isinstance(each, str | int) for each in path)
        for name, path in planner_data.items()
    )
    if not known:
        raise ValueError("this planner's own data are not those of torch's default planner")
    return {name: list(path) for name, path in planner_data.items()}


def encode_value(name: str, value: Any) -> Any:
    """ValueError for what JSON cannot hold."""
    if isinstance(value, bytes):
        return {"bytes": _text(value)}
    if value is None or isinstance(value, str | int | float | bool):
        return {"value": value}
    raise ValueError(
        f'"{name}" is {type(value).__name__}; beside tensors a checkpoint in memory holds numbers, '
        "texts and bytes only, so that nobody has to unpickle what others have written"
    )


def decode_value(read: dict[str, Any]) -> Any:
    return base64.b64decode(read["bytes"]) if "bytes" in read else read["value"]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
