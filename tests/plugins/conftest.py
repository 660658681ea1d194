"""Plug-ins against stand-ins that have the interfaces of the frameworks and nothing else."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tensorbus.kvstore import StoreServer

FAKES = Path(__file__).parent / "fakes"
FAKED = ("verl", "nemo_rl", "vllm", "torchft")


@pytest.fixture(scope="session", autouse=True)
def compiler_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Operations on tensors without memory import torch's compiler, which makes a folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("compiler")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield


@pytest.fixture
def url(store_server: StoreServer, unique: str) -> str:
    return f"{store_server.url}/{unique}"


@pytest.fixture
def load_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a plug-in anew, with the stand-ins in place of what may be installed here."""

    def forget() -> None:
        for name in list(sys.modules):
            top, _, rest = name.partition(".")
            if top in FAKED or (top == "tensorbus" and rest.partition(".")[0] in FAKED):
                del sys.modules[name]

    forget()
    monkeypatch.syspath_prepend(str(FAKES))
    yield importlib.import_module
    forget()
