"""The policy as its trainers have it: a small Llama that learns one poem, letter by letter."""

import torch
from torch import nn
from torch.nn import functional

POEM = """the rain it raineth every day
upon the just and unjust fellow
but chiefly on the just because
the unjust hath the just's umbrella
"""
LETTERS = sorted(set(POEM))
CONTEXT = 32

LAYERS = 2
HIDDEN = 256
HEADS = 8
KV_HEADS = 2  # each serves four heads
HEAD = HIDDEN // HEADS
INNER = 512
PADDED_TO = 8  # engines: rows of the vocabulary at a rank


def encode(text: str) -> torch.Tensor:
    return torch.tensor([LETTERS.index(letter) for letter in text])


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Turns pairs of numbers by an angle that says where in the text they are."""
    pairs = x.shape[-1] // 2
    speeds = 1000.0 ** -(torch.arange(pairs) / pairs)
    angles = torch.arange(x.shape[-2])[:, None] * speeds
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :pairs], x[..., pairs:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Of as many heads as these have: all of them, or those of one engine rank."""
    batch, length, _ = q.shape
    q, k, v = (each.view(batch, length, -1, HEAD).transpose(1, 2) for each in (q, k, v))
    sharing = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(sharing, 1) for each in (k, v))
    mixed = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, length, -1)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = linear(HIDDEN, HEADS * HEAD)
        self.k_proj = linear(HIDDEN, KV_HEADS * HEAD)
        self.v_proj = linear(HIDDEN, KV_HEADS * HEAD)
        self.o_proj = linear(HEADS * HEAD, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x)))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(HIDDEN, INNER), linear(HIDDEN, INNER)
        self.down_proj = linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = nn.RMSNorm(HIDDEN), Attention()
        self.post_attention_layernorm, self.mlp = nn.RMSNorm(HIDDEN), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(len(LETTERS), HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.lm_head = linear(HIDDEN, len(LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(letters)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))
