"""The tensors of a nested dictionary by name, with what a DTensor says of its layout."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tensorbus.dtensor import is_dtensor, local_part
from tensorbus.layout import Placement, coordinate_of, mesh_of, placement_of

# Shape of the mesh, placements, where this rank is, and the first of the mesh's ranks: meshes with
# different ones hold the whole tensor each.
OwnLayout: TypeAlias = tuple[list[int], list[Placement], list[int], int]


@dataclass
class Entries:
    """Tensors in the order of their names."""

    names: list[str] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)  # as they were given
    locals: list[Any] = field(default_factory=list)  # the part of this rank
    shapes: list[Sequence[int] | None] = field(default_factory=list)  # of the whole, of a DTensor
    layouts: list[OwnLayout | None] = field(default_factory=list)

    def form(self) -> list[Any]:
        """What must stay the same for a plan to stay good."""
        local_forms = [(tuple(local.shape), local.dtype) for local in self.locals]
        return [self.names, local_forms, self.shapes, self.layouts]


def entries_of(state_dict: Mapping[Any, Any]) -> Entries:
    """Names are keys joined by dots. ValueError lists all that cannot be sent."""
    found: dict[str, Any] = {}
    problems = []
    for name, value in _walk(state_dict, ""):
        if name in found:
            problems.append(f'"{name}" is there twice')
        elif not hasattr(value, "__dlpack__"):
            problems.append(f'"{name}" is no tensor but {type(value).__name__}')
        found[name] = value
    entries = Entries()
    layouts: dict[Any, OwnLayout] = {}
    with _without_gradients():
        for name in sorted(found) if not problems else ():
            tensor = found[name]
            local, shape = local_part(tensor)
            entries.names.append(name)
            entries.tensors.append(tensor)
            entries.locals.append(local)
            entries.shapes.append(shape)
            try:
                entries.layouts.append(_own_layout(tensor, layouts))
            except ValueError as error:
                problems.append(f'"{name}": {error}')
    if not found:
        problems.append("it has no tensors")
    if problems:
        raise ValueError(f"state_dict: {'; '.join(problems)}")
    return entries


def _walk(node: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _own_layout(tensor: Any, known: dict[Any, OwnLayout]) -> OwnLayout | None:
    if not is_dtensor(tensor):
        return None
    mesh = tensor.device_mesh
    key = id(mesh), tensor.placements  # a mesh takes long to compare
    if key not in known:
        coordinate = coordinate_of(mesh)
        shape, ranks = mesh_of(mesh)
        if coordinate is None or not ranks:
            raise ValueError(f"its mesh {mesh} says nothing about ranks")
        placements = [placement_of(placement) for placement in tensor.placements]
        known[key] = shape, placements, coordinate, ranks[0]
    return known[key]


def _without_gradients() -> contextlib.AbstractContextManager[Any]:
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.no_grad()
