"""Plug-ins inside of the real frameworks: `make test-plugins` installs them beside .venv.

Where vLLM is not installed nothing of this is looked at; `tests/plugins` has the same
plug-ins against stand-ins.
"""

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = ["test_*.py"] if find_spec("vllm") is None else []


@pytest.fixture(scope="session", autouse=True)
def frameworks_folder(scratch: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:  # noqa: ARG001
    """Frameworks leave sockets and caches where temporary files are."""
    folder = str(tmp_path_factory.mktemp("frameworks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
