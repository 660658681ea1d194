"""tensorbus.torchft, driven as torchft's manager drives it."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tensorbus.errors import PeerLostError
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

SOON = timedelta(seconds=20)


def state() -> dict:
    return {
        "model": {"weight": torch.arange(12.0).reshape(3, 4), "half": torch.ones(3).bfloat16()},
        "optimizer": [torch.tensor(3), ("adam", 0.1), {1: torch.zeros(0, 2)}],
        "step": 7,
        "blob": b"\x00",
        "nothing": None,
        "flag": True,
    }


def same(left, right) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        pairs = zip(left, right, strict=True)
        return type(left) is type(right) and all(same(*pair) for pair in pairs)
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


@pytest.fixture
def replicas(load_plugin, url):
    transport = load_plugin("tensorbus.torchft").TensorBusTransport
    made = [transport(url, name=f"replica {rank}") for rank in range(3)]
    yield made
    for each in made:
        each.shutdown()


@pytest.mark.proves("G3.3")
def test_replicas_that_are_behind_get_the_checkpoint(replicas):
    healthy, *behind = replicas
    for step in (1, 2):
        healthy.send_checkpoint([1, 2], step, state() | {"step": step}, SOON)
        for each in behind:
            got = each.recv_checkpoint(0, healthy.metadata(), step, SOON)
            assert same(got, state() | {"step": step})
            got["model"]["weight"].zero_()  # its own
        healthy.disallow_checkpoint()


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.proves("G3.3")
@pytest.mark.parametrize(
    ("mesh", "names", "placements"),
    [
        ([0], None, [Shard(0)]),
        ([[0]], ("replicas", "shards"), [Replicate(), Shard(1)]),
        (0, None, []),  # a rank in place of a mesh
        (1, None, []),  # another rank, as in torchft's own test
    ],
)
@pytest.mark.usefixtures("one_rank")
def test_a_dtensor_comes_with_all_that_it_says_of_itself(replicas, mesh, names, placements):
    healthy, behind, _ = replicas
    whole = torch.arange(12.0).reshape(3, 4).t()
    sent = distribute_tensor(whole, DeviceMesh("cpu", mesh, mesh_dim_names=names), placements)
    healthy.send_checkpoint([1], 1, {"weight": sent}, SOON)
    got = behind.recv_checkpoint(0, healthy.metadata(), 1, SOON)["weight"]
    assert isinstance(got, DTensor)
    assert got._spec == sent._spec
    assert torch.equal(got.to_local(), sent.to_local())
    got.to_local().zero_()  # its own
    assert sent.to_local().count_nonzero() == 11


@pytest.mark.proves("G3.3")
def test_what_is_not_allowed_or_not_there_is_an_error_in_time(replicas):
    healthy, behind, _ = replicas
    with pytest.raises(TimeoutError, match="step 3 from rank 0 timed out"):
        behind.recv_checkpoint(0, healthy.metadata(), 3, timedelta(milliseconds=10))
    healthy.send_checkpoint([1], 4, state(), SOON)
    healthy.disallow_checkpoint()
    with pytest.raises(TimeoutError, match="step 4 from rank 0 timed out"):
        behind.recv_checkpoint(0, healthy.metadata(), 4, timedelta(milliseconds=10))
    # What was announced by one that is gone since then.
    healthy.send_checkpoint([1], 5, state(), SOON)
    healthy._endpoint.close()
    with pytest.raises((PeerLostError, TimeoutError), match="step 5 from rank 0"):
        behind.recv_checkpoint(0, healthy.metadata(), 5, timedelta(seconds=5))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"a": {3.5: 1}}, "keys are texts and whole numbers"),
        ({"a": [1j]}, r"state_dict\['a'\]\[0\]\" is complex"),
        ({"a": object()}, r"\"state_dict\['a'\]\" is object"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_its_place(replicas, bad, message):
    with pytest.raises(ValueError, match=message):
        replicas[0].send_checkpoint([1], 1, bad, SOON)
