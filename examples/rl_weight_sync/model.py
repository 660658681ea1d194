"""A transformer that is small enough to learn one poem, letter by letter, within a minute."""

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
WIDTH = 64
HEADS = 4


def encode(text: str) -> torch.Tensor:
    return torch.tensor([LETTERS.index(letter) for letter in text])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Poet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        x = self.letters(letters) + self.places(torch.arange(letters.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


@torch.no_grad()
def generate(model: Poet, prompt: str, count: int) -> str:
    text = prompt
    for _ in range(count):
        logits = model(encode(text[-CONTEXT:])[None])[0, -1]
        text += LETTERS[int(logits.argmax())]
    return text
