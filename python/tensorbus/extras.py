"""Packages that only some calls need."""

import importlib
from typing import Any


def missing(package: str, what: str, extra: str = "", why: str = "") -> ImportError:
    """``what`` needs that package: names the extra of ours that installs it, which is called like
    the package unless told otherwise. ``why``: what was found instead."""
    because = f" ({why})" if why else ""
    install = f"pip install 'tensorbus[{extra or package}]'"
    return ImportError(f"{what} needs {package}: {install}{because}")


def need(package: str, what: str, extra: str = "") -> Any:
    """That package, imported, or an error as of ``missing``."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise missing(package, what, extra) from error
