"""Whether the framework that a plug-in serves is here, and is the one that the plug-in knows."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tensorbus.extras import missing


def load(plugin: str, module: str, framework: str, extra: str = "") -> ModuleType:
    """A module of a framework, or an ImportError that names the framework and the extra of ours
    that installs it; without an extra, what no index has."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        why = f"{module}: {error}"
        if extra:
            raise missing(framework, plugin, extra, why) from error
        raise ImportError(f"{plugin} needs {framework} ({why})") from error


def version_of(package: str) -> str:
    module = importlib.import_module(package)
    return str(getattr(module, "__version__", "of an unknown version"))


def check_interface(
    plugin: str, base: type, known: str, methods: Mapping[str, Sequence[str]]
) -> None:
    """ImportError unless the methods of a framework's class take these arguments."""
    other = [
        f"{name}({', '.join(_arguments(base, name))})"
        for name, arguments in methods.items()
        if _arguments(base, name) != list(arguments)
    ]
    if not other:
        return
    package = base.__module__.partition(".")[0]
    raise ImportError(
        f"{plugin} was made for {known}; {package} {version_of(package)} has another "
        f"{base.__qualname__}: {'; '.join(other)}"
    )


def _arguments(base: type, name: str) -> list[str]:
    method: Any = getattr(base, name, None)
    if method is None:
        return ["missing"]
    return [each for each in inspect.signature(method).parameters if each != "self"]
