"""The policy as an engine has it: fused, tensor parallel, plain tensors in bfloat16."""

import tensorbus
import torch
import torch.distributed as dist
from model import (
    CONTEXT,
    HEAD,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    LAYERS,
    LETTERS,
    PADDED_TO,
    attend,
    encode,
)
from torch.nn import functional

FUSED = {
    "*.qkv_proj.weight": [
        ("q_proj", HEADS * HEAD),
        ("k_proj", KV_HEADS * HEAD, KV_HEADS),
        ("v_proj", KV_HEADS * HEAD, KV_HEADS),
    ],
    "*.gate_up_proj.weight": [("gate_proj", INNER), ("up_proj", INNER)],
}


class ServedModel:
    """What one of `size` ranks holds, and how they generate together."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.vocabulary_rows = -(-len(LETTERS) // size // PADDED_TO) * PADDED_TO
        heads, kv_heads = HEADS // size, max(1, KV_HEADS // size)
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (len(LETTERS), HIDDEN),
            "norm.weight": (HIDDEN,),
            "lm_head.weight": (self.vocabulary_rows, HIDDEN),
        }
        for layer in range(LAYERS):
            shapes |= {
                f"layers.{layer}.input_layernorm.weight": (HIDDEN,),
                f"layers.{layer}.self_attn.qkv_proj.weight": (
                    (heads + 2 * kv_heads) * HEAD,
                    HIDDEN,
                ),
                f"layers.{layer}.self_attn.o_proj.weight": (HIDDEN, heads * HEAD),
                f"layers.{layer}.post_attention_layernorm.weight": (HIDDEN,),
                f"layers.{layer}.mlp.gate_up_proj.weight": (2 * INNER // size, HIDDEN),
                f"layers.{layer}.mlp.down_proj.weight": (HIDDEN, INNER // size),
            }
        self.weights = {name: torch.zeros(s, dtype=torch.bfloat16) for name, s in shapes.items()}
        self._split = [HEAD * heads, HEAD * kv_heads, HEAD * kv_heads]

    def views(self) -> dict[str, object]:
        """The same tensors under the trainers' names: made once, received in place."""
        views = tensorbus.fused(self.weights, FUSED, rank=self.rank, size=self.size)
        for name in views:
            if name.endswith(("o_proj.weight", "down_proj.weight")):  # cut along the columns
                views[name] = tensorbus.Sharded(views[name], f"{self.size}:S1", self.rank)
        views["lm_head.weight"] = tensorbus.Part(
            self.weights["lm_head.weight"],
            (len(LETTERS), HIDDEN),
            (self.rank * self.vocabulary_rows, 0),
            pad=0,
        )
        return views

    @torch.no_grad()
    def generate(self, prompt: str, count: int) -> str:
        text = prompt
        for _ in range(count):
            logits = self._logits(encode(text[-CONTEXT:])[None])
            text += LETTERS[int(logits.argmax())]
        return text

    def _logits(self, letters: torch.Tensor) -> torch.Tensor:
        """Of what follows the last letter; the same at all ranks."""
        x = functional.embedding(letters, self.weights["embed_tokens.weight"])
        for layer in range(LAYERS):
            x = x + self._attention(layer, x)
            x = x + self._mlp(layer, x)
        own = functional.linear(self._norm("norm", x[:, -1:]), self.weights["lm_head.weight"])
        return self._gathered(own.flatten())[: len(LETTERS)]

    def _attention(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        x = self._norm(f"layers.{layer}.input_layernorm", x)
        qkv = functional.linear(x, self.weights[f"layers.{layer}.self_attn.qkv_proj.weight"])
        mixed = attend(*qkv.split(self._split, -1))
        return self._summed(
            functional.linear(mixed, self.weights[f"layers.{layer}.self_attn.o_proj.weight"])
        )

    def _mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        x = self._norm(f"layers.{layer}.post_attention_layernorm", x)
        both = functional.linear(x, self.weights[f"layers.{layer}.mlp.gate_up_proj.weight"])
        gate, up = both.chunk(2, -1)
        inner = functional.silu(gate) * up
        return self._summed(
            functional.linear(inner, self.weights[f"layers.{layer}.mlp.down_proj.weight"])
        )

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (HIDDEN,), self.weights[f"{name}.weight"])

    def _summed(self, partial: torch.Tensor) -> torch.Tensor:
        """Each rank has what its columns contribute."""
        if self.size == 1:
            return partial
        total = partial.float()
        dist.all_reduce(total)
        return total.to(partial.dtype)

    def _gathered(self, own: torch.Tensor) -> torch.Tensor:
        if self.size == 1:
            return own
        all_ranks = [torch.empty_like(own.float()) for _ in range(self.size)]
        dist.all_gather(all_ranks, own.float())
        return torch.cat(all_ranks)
