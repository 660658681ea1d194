"""torchft's own test of what brings its checkpoints to replicas."""

from unittest import TestCase

import pytest
import torch
import torch._dynamo  # by the first DTensor otherwise, within the ten seconds that the test has
from tensorbus.kvstore import StoreServer
from tensorbus.torchft import TensorBusTransport
from torchft.checkpointing.transport_test import run_multi_recovery_test


@pytest.mark.proves("G3.3")
def test_torchfts_own_test_of_transports():
    with StoreServer("127.0.0.1", 0) as store:
        run_multi_recovery_test(
            TestCase(),
            lambda rank, _: TensorBusTransport(store.url, name=f"replica {rank}"),
            torch.device("cpu"),
        )
