"""Where a model's own loaders put the tensors of a checkpoint, found without their data.

Loaders rename, split, fuse, pad and shard, each model's in its own way. Here they run on tensors
without memory (torch's device "meta"): views of such a tensor still know their offset and strides,
so every ``copy_`` into a parameter says which box of which tensor goes where. The copies themselves
are not carried out, nor is anything else that would write to the model. vLLM is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorbus.parts import Part

Described: TypeAlias = Mapping[str, tuple[Sequence[int], Any]]  # shape and type by name
Module: TypeAlias = torch.nn.Module


@dataclass
class Found:
    """What the loaders do with each name."""

    parts: dict[str, list[Part]] = field(default_factory=dict)  # boxes of live parameters
    modules: dict[str, set[Module]] = field(default_factory=dict)  # into which a name goes
    # Modules that hold what is not a box of one tensor, and why.
    computed: dict[Module, str] = field(default_factory=dict)

    def note(self, name: str, modules: Iterable[Module], part: Part) -> None:
        self.parts.setdefault(name, []).append(part)
        self.modules.setdefault(name, set()).update(modules)

    def note_computed(self, name: str | None, module: Module, why: str) -> None:
        self.computed.setdefault(module, why)
        if name is not None:
            self.modules.setdefault(name, set()).add(module)


def dry_run(model: Module, tensors: Described, without_memory: Container[Module] = ()) -> Found:
    """Runs ``model.load_weights`` on tensors without memory; the model stays as it is.

    Parameters of the modules in ``without_memory`` may have none either: what goes into them is
    found, too, but nobody can fill it. Raises what the loaders raise: those that look at values
    cannot run without them.
    """
    fakes = {
        name: torch.empty(tuple(shape), dtype=dtype, device="meta")
        for name, (shape, dtype) in tensors.items()
    }
    recorder = _Recorder(model, fakes, without_memory)
    before = _Before(model)
    try:
        with torch.no_grad(), recorder:
            model.load_weights(recorder.named(fakes.items()))  # type: ignore[operator]
    finally:
        for module in before.restore():
            recorder.found.note_computed(None, module, "its parameters are replaced")
    return recorder.found


class _Recorder(TorchDispatchMode):
    """Looks at every operation of the loaders."""

    def __init__(
        self,
        model: Module,
        fakes: Mapping[str, torch.Tensor],
        without_memory: Container[Module],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = Found()
        self._names = {_key(fake): name for name, fake in fakes.items()}
        self._shapes = {name: tuple(fake.shape) for name, fake in fakes.items()}
        self._owners: dict[int, list[Module]] = {}  # several have what is tied
        for module in model.modules():
            has_none = module in without_memory
            for tensor in _all_tensors(module) if has_none else _own_tensors(module):
                self._owners.setdefault(_key(tensor), []).append(module)
        self._current: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: that would import torch's compiler, which takes seconds, and nothing is compiled."""
        return False

    def named(self, items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, fake in items:
            self._current = name
            yield name, fake

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        written = [each for each in _written(func, args) if _key(each) in self._owners]
        if not written:
            return func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default:
            self._copied(args[0], args[1])
        elif func.overloadpacket not in _FILLS:
            # What fills is padding, which the model has already.
            self._note_computed(written[0], f"{func.overloadpacket} changes it")
        return args[0]

    def _copied(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if target.numel() == 0:
            return None
        name = self._names.get(_key(source))
        if name is None:
            return self._note_computed(target, f'"{self._current}" is computed with')
        part = _part(target, source, self._shapes[name])
        if part is None:
            why = f'"{name}" {self._shapes[name]} is no box as {_geometry(source)}'
            return self._note_computed(target, why)
        return self.found.note(name, self._owners[_key(target)], part)

    def _note_computed(self, target: torch.Tensor, why: str) -> None:
        for module in self._owners[_key(target)]:
            self.found.note_computed(self._current, module, why)


_FILLS = {torch.ops.aten.fill_, torch.ops.aten.zero_}


def _key(tensor: torch.Tensor) -> int:
    """The same for all views of a tensor."""
    return int(tensor.untyped_storage()._cdata)


def _all_tensors(module: Module) -> list[torch.Tensor]:
    own = [*module._parameters.values(), *module._buffers.values()]
    return [each for each in own if each is not None]


def _own_tensors(module: Module) -> list[torch.Tensor]:
    return [each for each in _all_tensors(module) if not each.is_meta]


def _written(func: Any, args: Sequence[Any]) -> list[torch.Tensor]:
    return [
        given
        for declared, given in zip(func._schema.arguments, args, strict=False)
        if declared.alias_info is not None and declared.alias_info.is_write
        if isinstance(given, torch.Tensor)
    ]


def _geometry(view: torch.Tensor) -> str:
    return f"{tuple(view.shape)} with strides {tuple(view.stride())} at {view.storage_offset()}"


def _part(target: torch.Tensor, view: torch.Tensor, shape: tuple[int, ...]) -> Part | None:
    """The part of a contiguous tensor of ``shape`` that ``view`` is, in the memory of ``target``;
    None if it is no box."""
    if target.shape != view.shape:
        return None  # it is repeated
    strides = torch.empty(shape, device="meta").stride()
    sizes, target_strides = [1] * len(shape), [1] * len(shape)
    for size, stride, target_stride in zip(
        view.shape, view.stride(), target.stride(), strict=True
    ):  # fmt: skip
        if size == 1:
            continue
        dim = _dim(strides, shape, stride)
        if dim is None or sizes[dim] != 1:
            return None
        sizes[dim], target_strides[dim] = size, target_stride
    start = _start(int(view.storage_offset()), strides)
    inside = all(map(lambda begin, size, whole: begin + size <= whole, start, sizes, shape))
    if not inside:
        return None
    box = target.detach().as_strided(sizes, target_strides, target.storage_offset())
    return Part(box, shape, start)


def _dim(strides: Sequence[int], shape: Sequence[int], stride: int) -> int | None:
    """The dimension of more than one element that has this stride."""
    fits = (dim for dim, own in enumerate(strides) if own == stride and shape[dim] > 1)
    return next(fits, None)


def _start(offset: int, strides: Sequence[int]) -> list[int]:
    start = []
    for stride in strides:
        start.append(offset // stride)
        offset %= stride
    return start


class _Before:
    """The parameters of a model, to be put back if loaders exchange them."""

    def __init__(self, model: Module) -> None:
        self._modules = [
            (module, dict(module._parameters), dict(module._buffers)) for module in model.modules()
        ]
        self._memory = [
            (module, tensor, tensor.data)
            for module in model.modules()
            for tensor in _own_tensors(module)
        ]

    def restore(self) -> list[Module]:
        """Modules that had others."""
        changed = []
        for module, parameters, buffers in self._modules:
            if _same(module._parameters, parameters) and _same(module._buffers, buffers):
                continue
            changed.append(module)
            _put_back(module._parameters, parameters)
            _put_back(module._buffers, buffers)
        for module, tensor, memory in self._memory:
            if _key(tensor) != _key(memory) or tensor.is_meta:
                changed.append(module)
                tensor.data = memory
        return changed


def _same(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return now.keys() == before.keys() and all(now[name] is each for name, each in before.items())


def _put_back(now: dict[str, Any], before: Mapping[str, Any]) -> None:
    now.clear()
    now.update(before)


def split(
    found: Found, names: Iterable[str], refuse: Callable[[Module], str | None]
) -> tuple[dict[str, list[Part]], dict[str, str]]:
    """Names that may be filled in place, with their parts; and the others, with the reason.

    A module is filled in place with all its names or with none: vLLM loads a module anew as a
    whole. ``refuse`` says of a module why its parameters are not what it computes with. A name that
    went nowhere is needed by nobody, unless something is computed, perhaps from it.
    """
    reasons = dict(found.computed)
    for module in {module for modules in found.modules.values() for module in modules}:
        why = refuse(module)
        if why is not None:
            reasons.setdefault(module, why)
    others: dict[str, str] = {}
    while more := _touching(found, reasons, others):
        others |= more
        for name, why in more.items():
            for module in found.modules[name]:
                reasons.setdefault(module, why)
    if reasons:
        idle = (name for name in names if name not in found.modules)
        others |= dict.fromkeys(idle, "no loader copies it as it is")
    return {name: parts for name, parts in found.parts.items() if name not in others}, others


def _touching(
    found: Found, reasons: Mapping[Module, str], known: Mapping[str, str]
) -> dict[str, str]:
    return {
        name: next(reasons[module] for module in modules if module in reasons)
        for name, modules in found.modules.items()
        if name not in known and not modules.isdisjoint(reasons)
    }
