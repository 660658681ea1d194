"""State dicts whose values say what they hold: parts, lists of them, shards by layout, wholes."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from buses import Bus, caught, together
from links import dtensor, links
from tensorbus import Part, Sharded, TensorBusClient, fused, share_
from torch_oracle import same_bits

RANKS = range(8)
TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int32]


@pytest.fixture(scope="module")
def clients(store_server) -> Iterator[dict[int, TensorBusClient]]:
    clients = {
        rank: TensorBusClient.embedded(store_server.url, rank, "link-parts") for rank in RANKS
    }
    yield clients
    for client in clients.values():
        client.close()


def exchange(senders: list, sent: list[dict], receivers: list, got: list[dict], **options) -> None:
    together(
        *(
            lambda link=link, state=state: link.send_state_dict("x", state)
            for link, state in zip(senders, sent, strict=True)
        ),
        *(
            lambda link=link, state=state: link.recv_state_dict("x", state, **options)
            for link, state in zip(receivers, got, strict=True)
        ),
    )


@pytest.mark.proves("L2.1", "L2.2")
def test_kinds_may_face_each_other(bus: Bus):
    """DTensor shards at the trainers; a part, a shard by layout and a whole at the engines."""
    whole = torch.arange(48.0).reshape(8, 6)
    trainers, engines = links(bus, "t", "e", [0, 1]), links(bus, "e", "t", [2, 3, 4])
    sent = [
        {"w": dtensor(whole.chunk(2)[rank].clone(), [8, 6], [0, 1], [("S", 0)], rank)}
        for rank in (0, 1)
    ]
    columns = torch.zeros(8, 2)
    rows = torch.zeros(6, 4).T[:, 1:4]  # a view
    got = [
        {"w": Part(columns, (8, 6), (0, 4))},
        {"w": [Part(rows, (8, 6), (2, 3)), Part(np.zeros((1, 6), np.float32), (8, 6), (7, 0))]},
        {"w": torch.zeros(8, 6)},
    ]
    for version in (1, 2):
        exchange(trainers, sent, engines, got)
        assert torch.equal(columns, whole[:, 4:] * version)
        assert torch.equal(rows, whole[2:6, 3:] * version)
        assert np.array_equal(got[1]["w"][1].tensor, whole[7:].numpy() * version)
        assert torch.equal(got[2]["w"], whole * version)
        for state in sent:
            state["w"].to_local().mul_(2)


@pytest.mark.proves("L2.2")
def test_shards_by_layout_of_several_replicas(bus: Bus):
    """Two times two trainers, who know their place in the tensor-parallel layout only."""
    whole = torch.rand(6, 10)
    trainers, engines = links(bus, "t", "e", [0, 1, 2, 3]), links(bus, "e", "t", [4, 5])
    sent = [{"w": Sharded(whole.chunk(2)[rank % 2].clone(), "2:S0", rank % 2)} for rank in range(4)]
    strided = [torch.zeros(6, 6), torch.zeros(6, 4)]
    got = [{"w": Sharded(strided[rank], "2:SS1/2", rank, (6, 10))} for rank in (0, 1)]
    exchange(trainers, sent, engines, got)
    assert torch.equal(strided[0], torch.cat([whole[:, :3], whole[:, 5:8]], 1))
    assert torch.equal(strided[1], torch.cat([whole[:, 3:5], whole[:, 8:]], 1))
    with pytest.raises(ValueError, match=r"holds .* of a whole"):
        Sharded(torch.zeros(3), "2:S0", 0, (5, 5)).parts()
    with pytest.raises(ValueError, match="Partial"):
        Sharded(torch.zeros(3), "2:P", 0).parts()


@pytest.mark.proves("L2.2")
def test_a_shard_is_looked_at_once_and_found_where_its_tensor_is(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    tensor = torch.zeros(3, 4)
    shard = Sharded(tensor, "2:S1", 1)
    assert shard.parts()[0] is shard.parts()[0]
    for version in (1.0, 2.0):
        exchange([trainer], [{"w": torch.full((3, 8), version)}], [engine], [{"w": shard}])
        assert tensor.unique().tolist() == [version]
        share_(tensor)
    tensor.data = torch.zeros(3, 5)
    assert shard.parts()[0].shape == (3, 10)


@pytest.mark.proves("L2.3")
def test_what_lies_beyond_the_whole_is_padding(bus: Bus):
    """A vocabulary of 10 in three shards of 4, and of 10 in two shards of 6."""
    whole = torch.rand(10, 3)
    padded = torch.full((12, 3), -1.0)
    padded[:10] = whole
    trainers, engines = links(bus, "t", "e", [0, 1, 2]), links(bus, "e", "t", [3, 4])
    sent = [
        {"w": Part(padded[4 * rank : 4 * rank + 4].clone(), (10, 3), (4 * rank, 0), pad=0)}
        for rank in range(3)
    ]
    rows = [torch.full((6, 3), 9.0, requires_grad=True) for _ in range(2)]
    got = [{"w": Part(rows[rank], (10, 3), (6 * rank, 0), pad=0)} for rank in range(2)]
    for _ in range(2):
        exchange(trainers, sent, engines, got)
        with torch.no_grad():
            assert torch.equal(rows[0], whole[:6])
            assert torch.equal(rows[1], torch.cat([whole[6:], torch.zeros(2, 3)]))
            rows[1].fill_(5.0)
    with pytest.raises(ValueError, match="pad=0"):
        Part(torch.zeros(6, 3), (10, 3), (6, 0))
    with pytest.raises(ValueError, match="dimensions"):
        Part(torch.zeros(6), (10, 3), (6, 0))
    with pytest.raises(ValueError, match="begins"):
        Part(torch.zeros(6), (10,), (-1,))


def random_boxes(choice: random.Random, shape: list[int], ranks: list[int]) -> dict[int, list]:
    """Boxes that together hold everything: a grid, with a few that overlap it."""
    cuts = [sorted({0, size, *(choice.randint(0, size) for _ in range(2))}) for size in shape]
    cells: list[list[tuple[int, int]]] = [[]]
    for dim in cuts:
        pairs = list(itertools.pairwise(dim))
        cells = [[*cell, pair] for cell in cells for pair in pairs]
    extra = [
        [tuple(sorted(choice.choices(range(size + 1), k=2))) for size in shape]
        for _ in range(choice.randint(0, 3))
    ]
    held: dict[int, list] = {rank: [] for rank in ranks}
    for cell in [*cells, *extra]:
        for rank in choice.sample(ranks, choice.randint(1, min(2, len(ranks)))):
            held[rank].append(cell)
    return held


def make_state(
    names: list[tuple[str, list[int], torch.dtype, dict[int, list]]], rank: int
) -> dict[str, Any]:
    state: dict[str, Any] = {"mark": torch.zeros(1)}
    for name, shape, dtype, held in names:
        boxes = held[rank]
        if boxes:
            state[name] = [
                Part(
                    torch.zeros([end - begin for begin, end in box], dtype=dtype),
                    shape,
                    [begin for begin, _ in box],
                )
                for box in boxes
            ]
    return state


def run_case(clients: dict[int, TensorBusClient], seed: int) -> None:
    choice = random.Random(seed)
    ranks = choice.sample(list(RANKS), choice.randint(2, 7))
    split = choice.randint(1, len(ranks) - 1)
    sides = {"senders": ranks[:split], "receivers": ranks[split:]}
    tensors = []
    for index in range(choice.randint(1, 4)):
        shape = [choice.randint(1, 6) for _ in range(choice.randint(0, 4))]
        types = [choice.choice(TYPES) for _ in sides]
        held = [random_boxes(choice, shape, own) for own in sides.values()]
        whole = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(seed))
        tensors.append((f"w{index}", shape, types, held, whole))

    def run(side: int, rank: int) -> Any:
        own, other = f"{'sr'[side]}{seed}", f"{'rs'[side]}{seed}"
        link = clients[rank].link(
            own, other, len(list(sides.values())[side]), verify=("off", "full")[seed % 2]
        )
        state = make_state(
            [(name, shape, types[side], held[side]) for name, shape, types, held, _ in tensors],
            rank,
        )
        for step in (1, 2):
            for name, _, types, held, whole in tensors:
                for box, part in zip(held[side][rank], state.get(name, []), strict=True):
                    there = tuple(slice(*pair) for pair in box)
                    if side == 0:
                        part.tensor.copy_((whole * step)[there].to(types[0]))
            (link.send_state_dict if side == 0 else link.recv_state_dict)("x", state)
            if side == 0:
                continue
            for name, _, types, held, whole in tensors:
                for box, part in zip(held[1][rank], state.get(name, []), strict=True):
                    there = tuple(slice(*pair) for pair in box)
                    value = (whole * step)[there].to(types[0]).to(types[1])
                    assert same_bits(part.tensor, value), f"seed {seed}: {name} at rank {rank}"
        return link

    used = together(
        *(
            lambda side=side, rank=rank: run(side, rank)
            for side, own in enumerate(sides.values())
            for rank in own
        )
    )
    for link in used:
        link.close()


@pytest.mark.proves("L2.1", "L2.3", "L2.4", "L2.5")
@pytest.mark.parametrize("seed", range(30))
def test_random_boxes(clients, seed: int):
    run_case(clients, seed)


@pytest.mark.long
@pytest.mark.proves("L2.1", "L2.3", "L2.4", "L2.5")
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_many_random_boxes(clients, first: int):
    for seed in range(first, first + 100):
        run_case(clients, seed)


@pytest.mark.proves("L2.5")
def test_ranks_may_hold_different_names_and_a_plain_tensor_is_the_whole(bus: Bus):
    trainers, engines = links(bus, "t", "e", [0, 1]), links(bus, "e", "t", [2, 3])
    sent = [
        {"a": torch.full((2,), 1.0), "both": torch.full((3,), 2.0)},
        {"b": torch.full((4,), 3.0), "both": torch.full((3,), 2.0)},
    ]
    got = [{"b": torch.zeros(4)}, {"a": torch.zeros(2), "both": torch.zeros(3)}]
    exchange(trainers, sent, engines, got)
    assert got[0]["b"].tolist() == [3.0] * 4
    assert got[1]["a"].tolist() == [1.0] * 2
    assert got[1]["both"].tolist() == [2.0] * 3


@pytest.mark.proves("L2.5")
def test_what_nobody_takes_is_an_error_unless_a_subset_is_meant(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    sent, got = {"a": torch.ones(2), "b": torch.ones(3)}, {"b": torch.zeros(3)}
    sending = threading.Thread(target=lambda: trainer.send_state_dict("x", sent))
    sending.start()
    with pytest.raises(ValueError, match='"a" is missing at "e"'):
        engine.recv_state_dict("x", got)
    engine.recv_state_dict("x", got, subset=True)
    sending.join(30)
    assert not sending.is_alive()
    assert got["b"].sum() == 3


@pytest.mark.proves("L2.5")
def test_what_is_no_tensor_is_left_out_if_that_is_meant(threads: Bus):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    got = {"w": torch.zeros(2), "note": "own"}
    together(
        lambda: trainer.send_state_dict("x", {"w": torch.ones(2), "step": 7}, skip_others=True),
        lambda: engine.recv_state_dict("x", got, skip_others=True),
    )
    assert got["w"].sum() == 2
    assert got["note"] == "own"


@pytest.mark.proves("L2.7")
def test_a_receivers_mistake_is_told_to_it_and_does_not_end_the_send(bus: Bus):
    trainers, (engine,) = (
        links(bus, "trainer", "engine", [0, 1]),
        links(bus, "engine", "trainer", [2]),
    )
    sent = {"w": torch.ones(512, 8), "q_proj": torch.ones(4), "same": torch.ones(1)}
    sending = [
        threading.Thread(target=lambda link=link: link.send_state_dict("x", sent))
        for link in trainers
    ]
    for thread in sending:
        thread.start()
    wrong = {"w": torch.ones(256, 8), "other": torch.ones(4), "same": torch.zeros(1)}
    for _ in range(2):
        begin = time.monotonic()
        error = caught(lambda: engine.recv_state_dict("x", wrong))
        assert time.monotonic() - begin < 15, "at once, not at the deadline"
        assert isinstance(error, ValueError), error
        lines = [line.strip() for line in str(error).splitlines()]
        assert '"other" is missing at "trainer"' in lines
        assert '"q_proj" is missing at "engine"' in lines
        (shape,) = (line for line in lines if '"w"' in line)
        assert "(512, 8)" in shape
        assert "(256, 8)" in shape
        assert "a plain tensor is taken as the whole" in shape
        assert "tensorbus.Part" in shape
        assert not any('"same"' in line for line in lines)
    right = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    assert engine.recv_state_dict("x", right) == 1
    for thread in sending:
        thread.join(30)
        assert not thread.is_alive()
    assert right["w"].sum() == 512 * 8


@pytest.mark.proves("L2.3", "L2.7")
def test_what_nobody_holds_is_named(threads: Bus):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    part = {"lm_head": Part(torch.ones(500, 4), (512, 4), (0, 0))}
    sending = threading.Thread(target=lambda: caught(lambda: trainer.send_state_dict("x", part)))
    sending.start()
    with pytest.raises(ValueError, match=r"rows 500\.\.511 of .*\"lm_head\".*\(512, 4\).*nobody"):
        engine.recv_state_dict("x", {"lm_head": torch.zeros(512, 4)})
    rest = torch.zeros(12, 2)
    with pytest.raises(ValueError, match=r"\[500\.\.511, 1\.\.2\] of"):
        engine.recv_state_dict("x", {"lm_head": Part(rest, (512, 4), (500, 1))})
    got = torch.zeros(100, 4)
    engine.recv_state_dict("x", {"lm_head": Part(got, (512, 4), (400, 0))})
    assert got.sum() == 400
    sending.join(30)


@pytest.mark.proves("L2.7")
def test_at_most_twenty_lines_are_told_the_same_causes_together(threads: Bus):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    sent = {f"n{index:02}": torch.ones(2) for index in range(30)}
    got = {f"n{index:02}": torch.ones(3) for index in range(25)} | {"x": torch.ones(1)}
    sending = threading.Thread(target=lambda: caught(lambda: trainer.send_state_dict("x", sent)))
    sending.start()
    error = caught(lambda: engine.recv_state_dict("x", got))
    lines = str(error).splitlines()[1:]
    assert len(lines) == 21
    assert '"x" is missing at "t"' in lines[0]
    assert all("is missing at" in line for line in lines[:6])
    assert all("shape" in line for line in lines[6:20])
    assert lines[20].strip() == "and 11 more"
    engine.recv_state_dict("x", {name: torch.zeros(2) for name in sent})
    sending.join(30)


@pytest.mark.proves("L2.7")
def test_fused_names_are_recognised(threads: Bus):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    sent = {f"layers.0.attn.{name}_proj.weight": torch.ones(2, 2) for name in "qkv"}
    sending = threading.Thread(target=lambda: caught(lambda: trainer.send_state_dict("x", sent)))
    sending.start()
    qkv = torch.zeros(6, 2)
    error = caught(lambda: engine.recv_state_dict("x", {"layers.0.attn.qkv_proj.weight": qkv}))
    assert "k_proj, q_proj, v_proj missing and qkv_proj too much" in str(error)
    assert "tensorbus.fused" in str(error)
    rules = {"*.qkv_proj.weight": [("q_proj", 2), ("k_proj", 2), ("v_proj", 2)]}
    state = fused({"layers.0.attn.qkv_proj.weight": qkv}, rules, rank=0, size=1)
    engine.recv_state_dict("x", state)
    assert qkv.sum() == 12
    sending.join(30)


@pytest.mark.proves("L2.6")
@pytest.mark.parametrize(("size", "kv_heads"), [(2, 2), (4, 2), (2, 4), (8, 1), (1, 2)])
def test_fused_gives_every_rank_its_rows(size: int, kv_heads: int):
    heads, head, width = 8, 4, 3
    wholes = {
        "q_proj": torch.rand(heads * head, width),
        "k_proj": torch.rand(kv_heads * head, width),
        "v_proj": torch.rand(kv_heads * head, width),
    }
    rules = {
        "*.qkv_proj.weight": [
            ("q_proj", heads * head),
            ("k_proj", kv_heads * head, kv_heads),
            ("v_proj", kv_heads * head, kv_heads),
        ],
        "*.gate_up_proj.*": [("gate_proj", 16), ("up_proj", 16)],
    }
    for rank in range(size):
        own = max(1, kv_heads // size)
        kv = slice(rank * kv_heads // size * head, (rank * kv_heads // size + own) * head)
        rows = heads // size * head
        fused_rows = torch.cat(
            [
                wholes["q_proj"][rank * rows : (rank + 1) * rows],
                wholes["k_proj"][kv],
                wholes["v_proj"][kv],
            ]
        )
        state = {
            "l.0.qkv_proj.weight": fused_rows,
            "l.0.mlp.gate_up_proj.bias": torch.zeros(32 // size),
            "norm": torch.ones(1),
        }
        made = fused(state, rules, rank=rank, size=size)
        assert list(made) == [
            "l.0.q_proj.weight",
            "l.0.k_proj.weight",
            "l.0.v_proj.weight",
            "l.0.mlp.gate_proj.bias",
            "l.0.mlp.up_proj.bias",
            "norm",
        ]
        for name, whole in wholes.items():
            part = made[f"l.0.{name}.weight"]
            assert part.shape == tuple(whole.shape)
            first = part.start[0]
            assert torch.equal(part.tensor, whole[first : first + len(part.tensor)])
            assert part.tensor.data_ptr() != 0
        assert made["l.0.mlp.up_proj.bias"].start == (16 // size * rank,)
        assert made["norm"] is state["norm"]


@pytest.mark.proves("L2.6")
def test_rules_that_do_not_fit_are_refused():
    qkv = {"a.qkv.weight": torch.zeros(10, 2)}
    with pytest.raises(ValueError, match="10 rows here and 12"):
        fused(qkv, {"*.qkv.weight": [("q", 16), ("k", 4), ("v", 4)]}, rank=0, size=2)
    with pytest.raises(ValueError, match="cannot be shared"):
        fused(qkv, {"*.qkv.weight": [("q", 15)]}, rank=0, size=2)
    with pytest.raises(ValueError, match="which part"):
        fused(qkv, {"*": [("q", 16)]}, rank=0, size=2)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        fused(qkv, {}, rank=2, size=2)
