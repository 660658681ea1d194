"""Plug-ins inside of the real frameworks: `make test-plugins` installs them beside .venv.

Each in an environment of its own, where the tests of the others are not looked at: a file has
its framework's name. `tests/plugins` has the same plug-ins against stand-ins.
"""

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

FRAMEWORKS = ("vllm", "torchft", "verl")

collect_ignore_glob = [f"test_{name}_*.py" for name in FRAMEWORKS if find_spec(name) is None]


@pytest.fixture(scope="session", autouse=True)
def frameworks_folder(scratch: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:  # noqa: ARG001
    """Frameworks leave sockets and caches where temporary files are."""
    folder = str(tmp_path_factory.mktemp("frameworks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
