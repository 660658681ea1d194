"""What vLLM's own tests of weight transfer use of its conftest.py, which needs much for others."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """vLLM's logger passes nothing on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("vllm"), "propagate", True)
        yield caplog
