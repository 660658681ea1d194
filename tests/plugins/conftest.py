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


@pytest.fixture
def url(store_server: StoreServer, unique: str) -> str:
    return f"{store_server.url}/{unique}"


@pytest.fixture
def load_plugin(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a plug-in anew, with the stand-ins in place of what may be installed here; with
    ``--real`` it is imported with what is installed."""
    if request.config.getoption("--real"):
        yield importlib.import_module
        return

    def forget() -> None:
        for name in list(sys.modules):
            top, _, rest = name.partition(".")
            if top in FAKED or (top == "tensorbus" and rest.partition(".")[0] in FAKED):
                del sys.modules[name]

    forget()
    monkeypatch.syspath_prepend(str(FAKES))
    yield importlib.import_module
    forget()
