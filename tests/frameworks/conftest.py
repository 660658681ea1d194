"""Plug-ins inside of the real frameworks: `make test-plugins` installs them, each beside .venv.

Where a framework is not installed its files are not looked at; `tests/plugins` has the same
plug-ins against stand-ins.
"""

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDED = {
    "test_torchft.py": "torchft",
    "test_vllm_updates.py": "vllm",
    "test_vllm_server.py": "vllm",
    "test_verl.py": "verl",
}
collect_ignore = [file for file, module in NEEDED.items() if find_spec(module) is None]


@pytest.fixture(scope="session", autouse=True)
def frameworks_folder(scratch: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:  # noqa: ARG001
    """Frameworks leave sockets and caches where temporary files are."""
    folder = str(tmp_path_factory.mktemp("frameworks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
