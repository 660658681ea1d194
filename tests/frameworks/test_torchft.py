"""torchft's own conformance test, with our transport."""

from unittest import TestCase

import pytest
import torch
from tensorbus.torchft import TensorBusTransport
from torchft.checkpointing.transport_test import run_multi_recovery_test


@pytest.mark.proves("G3.3")
def test_it_passes_torchfts_own_test_of_transports(store_server, unique):
    url = f"{store_server.url}/{unique}"

    def transport(rank: int, _: int) -> TensorBusTransport:
        return TensorBusTransport(url, name=f"replica {rank}")

    run_multi_recovery_test(TestCase(), transport, torch.device("cpu"))
