"""Plug-ins say what they need when it is not there, or is not what they know."""

import subprocess
import sys
from pathlib import Path

import pytest

FAKES = Path(__file__).parent / "fakes"


def stderr_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    return done.stderr


@pytest.mark.parametrize(
    ("plugin", "framework", "message"),
    [
        ("nemo_rl", "nemo_rl", "tensorbus.nemo_rl needs a NeMo-RL that has"),
    ],
)
def test_a_framework_that_is_absent_is_named(plugin, framework, message):
    code = f"import sys; sys.modules[{framework!r}] = None; import tensorbus.{plugin}"
    assert f"ImportError: {message}" in stderr_of(code)


@pytest.mark.parametrize(
    ("plugin", "change", "message"),
    [
        (
            "verl",
            "import verl.checkpoint_engine.base as b\n"
            "b.CheckpointEngine.send_weights = lambda self, weights: None",
            "made for verl 0.9; verl 0.9.1 has another CheckpointEngine: send_weights(weights)",
        ),
        (
            "nemo_rl",
            "import nemo_rl.utils.checkpoint_engines.base as b\n"
            "del b.CheckpointEngine.receive_weight_batches",
            "nemo_rl 0.7.0 has another CheckpointEngine: receive_weight_batches(missing)",
        ),
        (
            "torchft",
            "import torchft.checkpointing.transport as b\n"
            "b.CheckpointTransport.metadata = lambda self, step: None",
            "made for the torchft of October 2026; torchft 2026.10.26 has another "
            "CheckpointTransport: metadata(step)",
        ),
    ],
)
def test_a_framework_of_another_version_is_named(plugin, change, message):
    code = f"import sys; sys.path.insert(0, {str(FAKES)!r})\n{change}\nimport tensorbus.{plugin}"
    assert message in stderr_of(code)
