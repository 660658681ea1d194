"""A poem, its letters, and a tiny Llama that can learn it."""

from pathlib import Path

import torch
from transformers import LlamaConfig

POEM = (
    "the wheels on the bus go round and round, round and round, round and round, "
    "the wheels on the bus go round and round, all through the town. "
)
LETTERS = sorted(set(POEM))
CONTEXT = 48


def encode(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def decode(tokens: list[int]) -> str:
    return "".join(LETTERS[token] if token < len(LETTERS) else "?" for token in tokens)


def configuration() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=32, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip


def batch(dice: torch.Generator, size: int = 16) -> torch.Tensor:
    """Windows of the poem, one token longer than the context."""
    text = torch.tensor(encode(POEM * 2))
    starts = torch.randint(0, len(POEM), (size, 1), generator=dice)
    return text[starts + torch.arange(CONTEXT + 1)]


def save(folder: Path) -> None:
    """What an engine needs beside the weights: configuration and tokenizer."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    configuration().save_pretrained(folder)
    words = {letter: number for number, letter in enumerate(LETTERS)} | {"?": len(LETTERS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(folder)
