"""The tensors of a nested dictionary by name, with what DTensors and parts say of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tensorbus import _core
from tensorbus.dtensor import dtensor_types, global_shapes, local_parts, without_gradients
from tensorbus.layout import Placement, coordinate_of, is_outside, mesh_of, placement_of
from tensorbus.parts import Part, described_parts, parts_of

# Shape of the mesh, placements, where this rank is, and the first of the mesh's ranks: meshes with
# different ones hold the whole tensor each.
OwnLayout: TypeAlias = tuple[list[int], list[Placement], list[int], int]
_TENSORS_HAVE = ("__dlpack__", "__cuda_array_interface__")


@dataclass
class Entries:
    """Tensors in the order of their names; several parts may have one name."""

    names: list[str]
    tensors: list[Any]  # as they were given
    locals: list[Any]  # the part of this rank
    shapes: list[Sequence[int] | None]  # of the whole, of DTensors and parts
    layouts: list[OwnLayout | None]  # of DTensors
    starts: list[Sequence[int] | None]  # of parts
    padded: list[Part] = field(default_factory=list)
    views: _core.Tensors = field(init=False)  # the locals, where they are now

    def look(self, stream: Any) -> None:
        """Where the tensors are, and what ``stream`` has been given for those on CUDA devices."""
        self.views = _core.Tensors(self.locals, self.names, stream)

    def form(self) -> list[list[Any]]:
        """What must stay the same, beside types and shapes, for a plan to stay good."""
        return [self.names, self.shapes, self.layouts, self.starts]

    def fill_padding(self) -> None:
        """Of tensors that are received."""
        with without_gradients():
            for part in self.padded:
                part.fill_padding()


def entries_of(
    state_dict: Mapping[Any, Any], skip_others: bool = False, stream: Any = None
) -> Entries:
    """Names are keys joined by dots; those of which this rank holds nothing are not there.
    ValueError lists all that cannot be sent; with ``skip_others`` what is no tensor is left out.
    """
    entries = _entries_in(state_dict, skip_others)
    entries.look(stream)
    return entries


def _entries_in(state_dict: Mapping[Any, Any], skip_others: bool) -> Entries:
    # Every round begins with this: what a class says is not asked of each of a thousand tensors.
    found: dict[str, Any] = {}
    parts: dict[str, list[Part]] = {}
    tensor_types: set[type] = set()
    problems = []
    for name, value in _walk(state_dict, "", tensor_types):
        if name in found:
            problems.append(f'"{name}" is there twice')
        elif type(value) not in tensor_types:
            own = _described(value, name, problems)
            if own is not None:
                parts[name] = own
                continue
            if any(hasattr(type(value), how) for how in _TENSORS_HAVE):
                tensor_types.add(type(value))
            elif not any(hasattr(value, how) for how in _TENSORS_HAVE):
                try:
                    own = parts_of(value)
                except ValueError as error:
                    problems.append(f'"{name}": {error}')
                    own = []
                if own is not None:
                    parts[name] = own
                    continue
                if not skip_others:
                    problems.append(f'"{name}" is no tensor but {type(value).__name__}')
                continue
        found[name] = value
    problems += [f'"{name}" is there twice' for name in found.keys() & parts.keys()]
    if not found and not parts:
        problems.append("it has no tensors")
    _raise_if_any(problems)
    if not any(issubclass(kind, dtensor_types()) for kind in tensor_types):
        names = sorted(found)
        tensors = [found[name] for name in names]
        nothing: list[Any] = [None] * len(names)
        if not parts:
            return Entries(names, tensors, tensors, nothing, nothing, nothing)
        return _with_parts(names, tensors, tensors, nothing, nothing, parts)
    names = _held_here(found)
    tensors = [found[name] for name in names]
    layouts = _own_layouts(names, tensors)
    return _with_parts(names, tensors, local_parts(tensors), global_shapes(tensors), layouts, parts)


def _described(value: Any, name: str, problems: list[str]) -> list[Part] | None:
    try:
        return described_parts(value)
    except (TypeError, ValueError) as error:
        problems.append(f'"{name}": {error}')
        return []


def _with_parts(
    names: list[str],
    tensors: list[Any],
    local: list[Any],
    shapes: list[Any],
    layouts: list[Any],
    parts: Mapping[str, list[Part]],
) -> Entries:
    rows = [
        (name, *rest, None)
        for name, *rest in zip(names, tensors, local, shapes, layouts, strict=True)
    ]
    for name, own in parts.items():
        rows += [(name, part.tensor, part.tensor, part.shape, None, part.start) for part in own]
    rows.sort(key=lambda row: row[0])
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(6)]
    entries = Entries(*columns)
    entries.padded = [part for own in parts.values() for part in own if part.pad is not None]
    return entries


def _held_here(found: Mapping[str, Any]) -> list[str]:
    """Names without those of DTensors on a mesh that this rank is not in: it holds none of them."""
    outside: dict[int, bool] = {}  # by mesh; to ask one takes long
    names = []
    for name in sorted(found):
        mesh = getattr(found[name], "device_mesh", None)
        if mesh is not None and id(mesh) not in outside:
            outside[id(mesh)] = is_outside(mesh)
        if mesh is None or not outside[id(mesh)]:
            names.append(name)
    return names


def _walk(
    node: Mapping[Any, Any], prefix: str, tensor_types: set[type]
) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if type(value) not in tensor_types and isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{key}.", tensor_types)
        else:
            yield f"{prefix}{key}", value


def _own_layouts(names: list[str], tensors: list[Any]) -> list[OwnLayout | None]:
    """None for plain tensors."""
    layouts: list[OwnLayout | None] = []
    known: dict[Any, OwnLayout] = {}
    problems = []
    types = dtensor_types()
    mesh: Any = None
    placements: Any = None
    layout: OwnLayout | None = None
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(tensor, types):
            layouts.append(None)
            continue
        # Neighbours mostly have the same: to compare takes half the time of a look-up.
        if tensor.device_mesh is not mesh or tensor.placements != placements:
            mesh, placements = tensor.device_mesh, tensor.placements
            try:
                layout = _own_layout(mesh, placements, known)
            except ValueError as error:
                problems.append(f'"{name}": {error}')
                mesh = None
        layouts.append(layout)
    _raise_if_any(problems)
    return layouts


def _own_layout(mesh: Any, placements: Sequence[Any], known: dict[Any, OwnLayout]) -> OwnLayout:
    key = id(mesh), placements  # a mesh takes long to compare
    if key not in known:
        coordinate = coordinate_of(mesh)
        shape, ranks = mesh_of(mesh)
        if coordinate is None or not ranks:
            raise ValueError(f"its mesh {mesh} says nothing about ranks")
        own = [placement_of(placement) for placement in placements]
        known[key] = shape, own, coordinate, ranks[0]
    return known[key]


def _raise_if_any(problems: list[str]) -> None:
    if problems:
        raise ValueError(f"state_dict: {'; '.join(problems)}")
