"""The distribution packages/fserver_lib: a module of that name without a launcher."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from processes import Start, free_port

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "packages/fserver_lib"

# Every process of a job imports torch.
pytestmark = pytest.mark.timeout(180)

# As SGLang's dispatcher calls the library: keys are ranges, answers say need_event.
SCRIPT = """
import os
import fserver_lib as f
import torch

f.init()
if os.environ["DMLC_ROLE"] == "worker":
    push = [torch.rand(4, 8), torch.rand(2)]
    pull = [torch.zeros(4, 8), torch.zeros(2)]
    for _ in range(3):
        handler = f.push_pull(push, range(len(push)), pull, range(len(push), 2 * len(push)))
        f.wait(handler)
    assert all(torch.equal(got, 2 * sent) for got, sent in zip(pull, push, strict=True))
    print("doubled")
elif os.environ["DMLC_ROLE"] == "server":
    for _ in range(3):
        for handler, tensors, keys in f.get_batch():
            assert list(keys) == [0, 1]
            f.respond([2 * tensor for tensor in tensors], handler, True)
    print("answered")
f.stop()
"""


def environment(role: str, port: int) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH", "")]))
    return {
        "PYTHONPATH": path,
        "DMLC_ROLE": role,
        "DMLC_NODE_RANK": "0",
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
    }


@pytest.mark.proves("G4.1")
def test_a_program_that_imports_it_needs_no_launcher(start_python: Start):
    port = free_port()
    nodes = {
        role: start_python(SCRIPT, env=environment(role, port))
        for role in ("scheduler", "server", "worker")
    }
    assert nodes["worker"].line(120) == "doubled"
    assert nodes["server"].line(120) == "answered"
    assert [node.wait(60) for node in nodes.values()] == [0, 0, 0]


@pytest.mark.proves("G4.1")
def test_it_has_the_same_names_and_is_no_part_of_the_wheel():
    code = (
        "import fserver_lib, tensorbus.fserver as own;"
        "assert fserver_lib.__all__ == own.__all__;"
        "assert all(getattr(fserver_lib, n) is getattr(own, n) for n in own.__all__)"
    )
    env = os.environ | environment("worker", 1)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=env)
    main = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert main["tool"]["scikit-build"]["wheel"]["packages"] == ["python/tensorbus"]
    own = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    assert own["project"]["dependencies"] == ["tensorbus"]
    assert own["tool"]["setuptools"]["py-modules"] == ["fserver_lib"]


def test_its_version_is_that_of_tensorbus(tmp_path: Path):
    clone = tmp_path / "clone"
    shutil.copytree(PACKAGE, clone / "packages/fserver_lib")
    lists = (ROOT / "CMakeLists.txt").read_text()
    (version,) = re.findall(r"^project\(tensorbus VERSION ([0-9.]+)", lists, re.MULTILINE)
    for each in (version, "7.8.9"):
        (clone / "CMakeLists.txt").write_text(
            lists.replace(f"VERSION {version}", f"VERSION {each}")
        )
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
        pip += ["--no-deps", "--no-build-isolation", "-w", tmp_path / each]
        subprocess.run([*pip, clone / "packages/fserver_lib"], check=True, timeout=120)
        (wheel,) = (tmp_path / each).iterdir()
        assert wheel.name == f"tensorbus_fserver_lib-{each}-py3-none-any.whl"
        with zipfile.ZipFile(wheel) as archive:
            assert "fserver_lib.py" in archive.namelist()
