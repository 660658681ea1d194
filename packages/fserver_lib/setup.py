"""The version is that of tensorbus, read in its clone, from which this is installed."""

import re
from pathlib import Path

from setuptools import setup

_LISTS = Path(__file__).resolve().parents[2] / "CMakeLists.txt"
_found = re.search(r"^project\(tensorbus VERSION ([0-9.]+)", _LISTS.read_text(), re.MULTILINE)
if _found is None:
    raise SystemExit(f"{_LISTS} does not say the version")
setup(version=_found[1])
