"""Where loaders put boxes, found without data: loaders written as vLLM's are, for every rank."""

import pytest
import torch
from tensorbus.parts import Part
from tensorbus.vllm.dry_run import dry_run, split
from torch import nn

HEADS, KV_HEADS, WIDTH, HIDDEN, VOCABULARY = 4, 2, 8, 16, 37


class Linear(nn.Module):
    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.weight = nn.Parameter(torch.full((rows, columns), -1.0), requires_grad=False)


class Model(nn.Module):
    """One layer of a tensor-parallel model, loaded from the names of a checkpoint."""

    def __init__(self, rank: int, ranks: int):
        super().__init__()
        self.rank, self.ranks = rank, ranks
        self.kv_heads = max(1, KV_HEADS // ranks)
        rows = WIDTH * (HEADS // ranks + 2 * self.kv_heads)
        self.embed = Linear(-(-VOCABULARY // (8 * ranks)) * 8, HIDDEN)  # padded
        self.qkv = Linear(rows, HIDDEN)
        self.out = Linear(HIDDEN, WIDTH * HEADS // ranks)
        self.gate_up = Linear(2 * (24 // ranks), HIDDEN)
        self.experts = nn.Module()
        self.experts.w13 = nn.Parameter(torch.full((3, HIDDEN, 2 * 12), -1.0), requires_grad=False)
        self.norm = nn.Parameter(torch.full((HIDDEN,), -1.0), requires_grad=False)
        self.seen: list[str] = []

    def load_weights(self, items):
        for name, tensor in items:
            self.seen.append(name)
            getattr(self, f"load_{name}")(tensor)

    def load_embed(self, tensor):
        weight = self.embed.weight
        share = weight.shape[0]
        begin = min(self.rank * share, VOCABULARY)
        tensor = tensor.narrow(0, begin, min(share, VOCABULARY - begin))
        weight[: tensor.shape[0]].data.copy_(tensor)
        weight[tensor.shape[0] :].data.fill_(0)

    def load_q(self, tensor):
        size = WIDTH * HEADS // self.ranks
        self.qkv.weight.data.narrow(0, 0, size).copy_(tensor.narrow(0, self.rank * size, size))

    def load_k(self, tensor, position=0):
        size = WIDTH * self.kv_heads
        begin = (self.rank * KV_HEADS // self.ranks) * WIDTH if self.ranks > KV_HEADS else (
            self.rank * size)  # fmt: skip
        target = WIDTH * HEADS // self.ranks + position * size
        self.qkv.weight.data[target : target + size].copy_(tensor[begin : begin + size])

    def load_v(self, tensor):
        self.load_k(tensor, 1)

    def load_out(self, tensor):
        self.out.weight.data.copy_(tensor.chunk(self.ranks, dim=1)[self.rank])

    def load_gate(self, tensor, half=0):
        size = 24 // self.ranks
        target = self.gate_up.weight.data.narrow(0, half * size, size)
        target.copy_(tensor[self.rank * size : (self.rank + 1) * size])

    def load_up(self, tensor):
        self.load_gate(tensor, 1)

    def load_experts(self, tensor):
        """Fused in the checkpoint, (expert, 2 * inner, hidden), and transposed here."""
        for half, part in enumerate(tensor.chunk(2, dim=1)):
            for number, expert in enumerate(part.unbind(0)):
                target = self.experts.w13.data[number]
                target.narrow(1, half * 12, 12).copy_(expert.t())

    def load_norm(self, tensor):
        self.norm.data.copy_(tensor)


LOAD_K = Model.load_k


def checkpoint(dtype=torch.float32) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {
        "embed": (VOCABULARY, HIDDEN), "q": (WIDTH * HEADS, HIDDEN),
        "k": (WIDTH * KV_HEADS, HIDDEN), "v": (WIDTH * KV_HEADS, HIDDEN),
        "out": (HIDDEN, WIDTH * HEADS), "gate": (24, HIDDEN), "up": (24, HIDDEN),
        "experts": (3, 24, HIDDEN), "norm": (HIDDEN,),
    }  # fmt: skip
    return {name: torch.randn(shape, dtype=dtype) for name, shape in shapes.items()}


def described(tensors) -> dict:
    return {name: (tuple(each.shape), each.dtype) for name, each in tensors.items()}


def fill(part: Part, whole: torch.Tensor) -> None:
    box = tuple(
        slice(begin, begin + size)
        for begin, size in zip(part.start, part.tensor.shape, strict=True)
    )
    assert tuple(whole.shape) == part.shape
    part.tensor.copy_(whole[box])


@pytest.mark.proves("G1.3")
@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 2), (0, 4), (1, 4), (3, 4)])
def test_boxes_are_what_the_loaders_copy(rank, ranks):
    tensors = checkpoint()
    expected, model = Model(rank, ranks), Model(rank, ranks)
    expected.load_weights(tensors.items())
    found = dry_run(model, described(tensors))
    assert all(bool((each == -1).all()) for each in model.parameters()), "the dry run wrote"
    parts, others = split(found, tensors, lambda _: None)
    assert others == {}
    model.embed.weight.data.zero_()  # its padding, which is no part
    for name, own in parts.items():
        for part in own:
            fill(part, tensors[name])
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.proves("G1.3")
def test_types_are_no_hindrance():
    parts = dry_run(Model(0, 2), described(checkpoint(torch.bfloat16))).parts
    assert {part.tensor.dtype for own in parts.values() for part in own} == {torch.float32}


@pytest.mark.proves("G1.3")
@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (lambda model, k: LOAD_K(model, k * 2), "is computed with"),
        (lambda model, k: LOAD_K(model, torch.cat([k, k])), "is computed with"),
        (lambda model, k: model.qkv.weight.data.add_(k.sum()), "changes it"),
        (lambda model, k: model.qkv.weight.data[:1].copy_(k.view(-1)[: 2 * HIDDEN : 2][None]),
         "is no box"),
        (lambda model, k: model.qkv.weight.data.copy_(k[0]), "is no box"),
        (lambda model, _: setattr(model.qkv, "weight", nn.Parameter(torch.zeros(2))),
         "are replaced"),
    ],
)  # fmt: skip
def test_what_is_no_box_is_found_with_all_its_module_and_the_model_stays(monkeypatch, loader, why):
    monkeypatch.setattr(Model, "load_k", loader)
    monkeypatch.setattr(Model, "load_v", lambda *_: None)
    model = Model(0, 1)
    before = dict(model.named_parameters())
    parts, others = split(dry_run(model, described(checkpoint())), checkpoint(), lambda _: None)
    assert {"q", "k"} <= others.keys(), "a module is filled in place with all its names or none"
    assert any(why in each for each in others.values()), others
    assert {"embed", "out", "gate", "up", "experts", "norm"} == parts.keys()
    assert all(before[name] is each for name, each in model.named_parameters())
    assert all(bool((each == -1).all()) for each in model.parameters())


@pytest.mark.proves("G1.3")
def test_a_module_that_is_refused_takes_its_names_along():
    model = Model(0, 1)
    found = dry_run(model, described(checkpoint()))
    parts, others = split(found, checkpoint(), lambda each: "no" if each is model.gate_up else None)
    assert others == {"gate": "no", "up": "no"}
    assert parts.keys() == checkpoint().keys() - others.keys()


def test_a_loader_that_looks_at_values_raises_and_the_model_stays(monkeypatch):
    monkeypatch.setattr(Model, "load_norm", lambda _, tensor: tensor.sum().item())
    model = Model(0, 1)
    with pytest.raises(RuntimeError, match="meta"):
        dry_run(model, described(checkpoint()))
    assert all(bool((each == -1).all()) for each in model.parameters())
