"""What a worker pulls of an update, and where each tensor of it goes."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import torch

from tensorbus import pool
from tensorbus.link import Link
from tensorbus.vllm.dry_run import Described, Module, dry_run, split
from tensorbus.vllm.reload import with_parameters_of_loaders

logger = logging.getLogger("tensorbus")

MODES = ("staged", "direct", "auto")
# Methods whose kernels read the parameter that was loaded, if nobody has packed it.
_PLAIN = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")


class Intake(Protocol):
    in_place: bool  # a pull writes to the model

    def pull(self, version: int | None, timeout: float) -> dict[str, Any]:
        """The tensors that are still to be loaded. They stay as they are until the next pull."""
        ...


class Staged:
    """Everything into memory beside the model, which is kept for the next version."""

    in_place = False

    def __init__(self, link: Link, name: str) -> None:
        self._link, self._name = link, name
        self._tensors: dict[str, Any] = {}

    def pull(self, version: int | None, timeout: float) -> dict[str, Any]:
        if self._tensors:
            try:
                self._link.pull(self._name, self._tensors, version=version, timeout=timeout)
            except ValueError:
                self._tensors = {}  # other tensors may be published now
            else:
                return self._tensors
        _, self._tensors = self._link.pull_new(self._name, version=version, timeout=timeout)
        return self._tensors


class InPlace:
    """Boxes of the model's own parameters, and beside them what cannot be filled in place."""

    in_place = True

    def __init__(self, link: Link, name: str, parts: dict[str, Any], staged: Described) -> None:
        self._link, self._name = link, name
        self._staged = {each: pool.empty(shape, dtype) for each, (shape, dtype) in staged.items()}
        self._all = parts | self._staged

    def pull(self, version: int | None, timeout: float) -> dict[str, Any]:
        # A worker of several has not every name: of a layer of another one it takes nothing.
        self._link.pull(self._name, self._all, version=version, timeout=timeout, subset=True)
        return self._staged


def make_intake(
    link: Link, name: str, model: Module, mode: str, described: Described, device: Any
) -> Intake:
    """ValueError if ``mode`` is ``"direct"`` and something cannot be filled in place."""
    if mode == "staged":
        return Staged(link, name)
    parts, others = _split(model, described, device)
    if mode == "direct" and others:
        raise ValueError(
            f"{len(others)} of {len(described)} tensors cannot be filled in place: "
            f"{_listed(others)}. Mode auto loads those as vLLM does"
        )
    for why in sorted(set(others.values())):
        logger.info("tensorbus loads through vLLM, since %s: %s", why, _names(others, why))
    if not parts:
        return Staged(link, name)
    return InPlace(link, name, parts, {each: described[each] for each in others})


def _split(
    model: Module, described: Described, device: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    if getattr(device, "type", "cpu") != "cpu":
        return {}, dict.fromkeys(described, f"the model is on {device}, not in host memory")
    lost = {each for each in model.modules() if _has_lost_its_parameters(each)}
    try:
        with with_parameters_of_loaders(lost):
            found = dry_run(model, described, without_memory=lost)
    except Exception as error:  # of a loader, which may do anything
        why = f"the model's loaders cannot run without data: {type(error).__name__}: {error}"
        return {}, dict.fromkeys(described, why)
    derived = _derived_from(model)
    parts, others = split(found, described, lambda module: _why_not(module, derived))
    return dict(parts), others


def _why_not(module: Module, derived: set[Module]) -> str | None:
    """Why the parameters of a module are not what its kernel reads; None if they are."""
    kind = type(module).__name__
    method = getattr(module, "quant_method", None)
    if method is not None and type(method).__name__ not in _PLAIN:
        return f"{kind} is processed by {type(method).__name__}"
    if _is_packed(module):
        return f"{kind} computes with a packed copy"
    if module in derived:
        return f"another module computes with what it derives from {kind}"
    return None


def _is_packed(module: Module) -> bool:
    return bool(getattr(getattr(module, "cpu_linear", None), "__closure__", None))


def _has_lost_its_parameters(module: Module) -> bool:
    """A packed copy is all that it has."""
    own = (each for each in module._parameters.values() if each is not None)
    return _is_packed(module) and any(each.numel() == 0 for each in own)


def _derived_from(model: Module) -> set[Module]:
    """Modules from whose parameters others make their own when they are processed."""
    makers = (each for each in model.modules() if hasattr(each, "process_weights_after_loading"))
    return {
        value
        for maker in makers
        for value in [*vars(maker).values(), *maker.modules()]
        if isinstance(value, torch.nn.Module)
    }


def _names(others: dict[str, str], why: str) -> str:
    names = sorted(name for name, reason in others.items() if reason == why)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _listed(others: dict[str, str]) -> str:
    return "; ".join(f"{_names(others, why)}: {why}" for why in sorted(set(others.values())))
