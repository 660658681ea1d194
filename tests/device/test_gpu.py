"""With torch's own tensors on a real GPU: what the stand-in cannot show. `make test-gpu`."""

from __future__ import annotations

import pytest
import tensorbus
import torch
from tensorbus.kvstore import StoreServer
from torch_oracle import same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SHAPE = (1024, 4096)


def spin() -> None:
    """The current stream is busy for a while."""
    busy = torch.ones(4096, 4096, device="cuda")
    for _ in range(50):
        busy = busy @ busy / 4096


@pytest.fixture
def matrix() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


def test_published_and_pulled_behind_busy_streams(
    store_server: StoreServer, unique: str, matrix: torch.Tensor
):
    clients = [
        tensorbus.TensorBusClient.embedded(store_server.url, rank, f"gpu-{unique}")
        for rank in range(2)
    ]
    trainer = clients[0].link("trainer", expected_world_size=1)
    engine = clients[1].link("engine", "trainer", 1)
    weight = torch.zeros(SHAPE, device="cuda")
    target = torch.zeros(SHAPE[::-1], dtype=torch.bfloat16, device="cuda").T
    for version in (1, 2, 3):
        spin()
        weight.copy_(matrix * version)
        trainer.publish("policy", {"w": weight}, version=version)
        weight.zero_()
        spin()
        target.zero_()
        engine.pull("policy", {"w": target}, version=version)
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            found = target.cpu()
        assert same_bits(found, (matrix * version).to(torch.bfloat16))
    for client in clients:
        client.close()


def test_exposed_and_read_on_another_stream(matrix: torch.Tensor):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        spin()
        weight = matrix.to("cuda", non_blocking=True)
    with tensorbus.Endpoint() as owner, tensorbus.Endpoint() as reader:
        descriptor = owner.expose([weight.T], stream=stream)
        (found,) = reader.read(descriptor, device="cuda")
        assert same_bits(found.cpu(), matrix.T)
        (found,) = reader.read(descriptor)
        assert same_bits(found, matrix.T)


def test_a_graph_that_is_being_captured_is_refused_and_not_spoilt():
    weight = torch.zeros(SHAPE, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with tensorbus.Endpoint() as endpoint, torch.cuda.graph(graph):
        weight.add_(1)
        with pytest.raises(ValueError, match="captures a graph"):
            endpoint.expose([weight])
    graph.replay()
    torch.cuda.synchronize()
    assert weight.cpu().eq(1).all()
