"""Random state dicts of DTensors, each with a mesh and placements of its own, against torch."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from buses import Bus, caught, together
from cases import Case, fill, make_case, place_for
from links import dtensor, links
from processes import Start
from tensorbus import Link, TensorBusClient
from torch_oracle import Placed, same_bits

RANKS = range(8)

TRAINER = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
import tensorbus

url, namespace = sys.argv[1:]
dist.init_process_group("gloo")
line, grid = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5))
state = model.state_dict()
state["0.weight"] = distribute_tensor(state["0.weight"], line, [Shard(0)])
state["0.bias"] = distribute_tensor(state["0.bias"], grid, [Replicate(), Shard(0)])
client = tensorbus.TensorBusClient.embedded(url, int(os.environ["RANK"]), namespace)
link = client.link("trainer", "engine", 2)
for version in (1, 2):
    assert link.send_state_dict("policy", state) == version
    with torch.no_grad():
        state = {name: tensor * 2 for name, tensor in state.items()}
dist.barrier()
client.close()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def clients(store_server) -> Iterator[dict[int, TensorBusClient]]:
    clients = {
        rank: TensorBusClient.embedded(store_server.url, rank, "link-layouts") for rank in RANKS
    }
    yield clients
    for client in clients.values():
        client.close()


def state_dict(case: Case, side: str, rank: int, places: list[torch.Tensor]) -> dict:
    """Nested by pair. What is replicated everywhere goes as a plain tensor now and then."""
    own = {agent: torch_rank for torch_rank, agent in enumerate(case.ranks(side))}
    nested: dict[str, dict] = {}
    for tensor, place in zip(case.tensors, places, strict=True):
        placed: Placed = case.placed(tensor, side)
        mesh = torch.tensor([own[agent] for agent in placed.ranks]).reshape(placed.mesh)
        plain = all(kind == "R" for kind, *_ in placed.placements) and case.seed % 2
        nested.setdefault(f"pair {tensor.pair}", {})[tensor.name] = (
            place if plain else dtensor(place, tensor.shape, mesh, placed.placements, own[rank])
        )
    return nested


def run_side(client: TensorBusClient, case: Case, side: str, rank: int) -> Link:
    """The link stays open: a sender that closes it ends it for all."""
    # Names of their own keep cases apart.
    names = {"senders": f"s{case.seed}", "receivers": f"r{case.seed}"}
    remote = names["receivers" if side == "senders" else "senders"]
    verify = ("off", "sample", "full")[case.seed % 3]
    link = client.link(names[side], remote, len(case.ranks(side)), verify=verify)
    places = [place_for(case, tensor, side, rank) for tensor in case.tensors]
    for step in range(2):
        given = state_dict(case, side, rank, places)
        if side == "senders":
            for place, tensor in zip(places, case.tensors, strict=True):
                fill(place, case.held(tensor, side, rank, step))
            link.send_state_dict("x", given)
            continue
        link.recv_state_dict("x", given)
        for place, tensor in zip(places, case.tensors, strict=True):
            expected = case.expected(tensor, side, rank, step)
            assert same_bits(place, expected), f"seed {case.seed}: {tensor} at rank {rank}"
    return link


def run_case(clients: dict[int, TensorBusClient], seed: int) -> None:
    case = make_case(seed, RANKS)
    links_used = together(
        *(
            lambda rank=rank, side=side: run_side(clients[rank], case, side, rank)
            for side in ("senders", "receivers")
            for rank in case.ranks(side)
        )
    )
    for link in links_used:
        link.close()


@pytest.mark.proves("B4.1", "B4.2", "B4.3")
@pytest.mark.parametrize("seed", range(40))
def test_random_state_dicts(clients, seed):
    run_case(clients, seed)


@pytest.mark.long
@pytest.mark.proves("B4.1", "B4.2", "B4.3")
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_random_state_dicts(clients, first):
    for seed in range(first, first + 100):
        run_case(clients, seed)


def test_meshes_of_some_ranks_only(threads: Bus):
    """Two stages of a pipeline, and replicas of a tensor on two meshes of the same shape."""
    senders, receivers = links(threads, "t", "e", [0, 1, 2, 3]), links(threads, "e", "t", [5])
    stage, both, plain = torch.arange(6.0), torch.arange(8.0).reshape(2, 4), torch.ones(3)

    def part(rank: int) -> dict:
        mesh = [0, 1] if rank < 2 else [2, 3]
        half = rank % 2
        return {
            f"stage{rank // 2}": dtensor(
                stage.chunk(2)[half] + rank // 2, [6], mesh, [("S", 0)], rank
            ),
            "both": dtensor(both.chunk(2, 1)[half], [2, 4], mesh, [("S", 1)], rank),
            "plain": plain,
        }

    got = {"stage0": torch.zeros(6), "stage1": torch.zeros(6), "both": torch.zeros(2, 4),
           "plain": torch.zeros(3)}  # fmt: skip
    together(
        *(lambda link=link, rank=rank: link.send_state_dict("x", part(rank))
          for rank, link in enumerate(senders)),
        lambda: receivers[0].recv_state_dict("x", got),
    )  # fmt: skip
    assert torch.equal(got["stage0"], stage)
    assert torch.equal(got["stage1"], stage + 1)
    assert torch.equal(got["both"], both)
    assert torch.equal(got["plain"], plain)


def test_an_incomplete_mesh_is_an_error_that_names_the_tensor(threads: Bus):
    senders = links(threads, "t", "e", [0, 1])
    part = {"w": dtensor(torch.ones(2), [4], [0, 1], [("S", 0)], 0), "p": torch.ones(1)}
    (engine,) = links(threads, "e", "t", [2])
    got = {"w": torch.zeros(4), "p": torch.zeros(1)}
    errors = together(
        lambda: caught(lambda: senders[0].send_state_dict("x", part)),
        lambda: caught(lambda: senders[1].send_state_dict("x", {"p": torch.ones(1)})),
        lambda: caught(lambda: engine.recv_state_dict("x", got)),
    )
    for error in errors:
        assert isinstance(error, ValueError), error
        assert '"w"' in str(error)
        assert "2 ranks and 1 of them" in str(error)


@pytest.mark.proves("B3.1")
def test_a_sharded_model_under_torchrun(threads: Bus, start_program: Start, tmp_path: Path):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    trainers = start_program(
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone",
        str(script), threads.url, threads.namespace, env={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    (engine,) = links(threads, "engine", "trainer", [5])
    torch.manual_seed(3)
    sent = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5)).state_dict()
    got = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5))
    for version in (1, 2):
        assert engine.recv_state_dict("policy", got.state_dict(), timeout=100) == version
        for name, tensor in got.state_dict().items():
            assert torch.equal(tensor, sent[name] * version), name
    assert trainers.wait(60) == 0, trainers.errors


@pytest.mark.proves("B6.6")
def test_a_rank_outside_of_a_mesh_holds_nothing_of_its_tensors(bus):
    """Trainers 0 and 1 have "w", all three have "b"; of the engines the second has nothing."""
    whole = torch.arange(12.0).reshape(4, 3)
    trainers, engines = links(bus, "t", "e", [0, 1, 2]), links(bus, "e", "t", [3, 4])

    def state(rank: int) -> dict:
        part = whole.chunk(2)[rank] if rank < 2 else torch.empty(0)
        return {"w": dtensor(part.clone(), [4, 3], [0, 1], [("S", 0)], rank), "b": torch.ones(2)}

    def half(rank: int) -> dict:
        """The second engine holds nothing at all."""
        mine = torch.zeros(4, 3) if rank == 0 else torch.empty(0)
        bias = torch.zeros(2) if rank == 0 else torch.empty(0)
        return {
            "w": dtensor(mine, [4, 3], [0], [("R",)], rank),
            "b": dtensor(bias, [2], [0], [("R",)], rank),
        }

    got = [half(0), half(1)]
    for version in (1, 2):
        versions = together(
            *(
                lambda rank=rank: trainers[rank].send_state_dict("x", state(rank))
                for rank in range(3)
            ),
            *(lambda rank=rank: engines[rank].recv_state_dict("x", got[rank]) for rank in range(2)),
        )
        assert versions == [version] * 5
    assert torch.equal(got[0]["w"].to_local(), whole)
    assert got[0]["b"].to_local().sum() == 2
