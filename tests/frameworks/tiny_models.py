"""Models of some thousand parameters with the shapes that make engines cut them oddly."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GemmaConfig, LlamaConfig, Qwen2Config, Qwen3MoeConfig

SMALL: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 256,
}  # fmt: skip
CONFIGURATIONS = {
    "llama": LlamaConfig(
        vocab_size=256, num_key_value_heads=2, head_dim=32, tie_word_embeddings=False, **SMALL
    ),
    # An odd vocabulary, biases, and fewer key-value heads than an engine of two ranks has.
    "qwen2": Qwen2Config(vocab_size=259, num_key_value_heads=1, tie_word_embeddings=False, **SMALL),
    # Embeddings are the head, too.
    "gemma": GemmaConfig(vocab_size=256, num_key_value_heads=1, head_dim=32, **SMALL),
    "moe": Qwen3MoeConfig(
        vocab_size=256, num_key_value_heads=2, head_dim=32, tie_word_embeddings=False,
        moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1,
        **SMALL,
    ),
}  # fmt: skip
PROMPT = [1, 5, 9, 20]
TOKENS = 8


def make(kind: str, seed: int) -> torch.nn.Module:
    """With random parameters in float32, the same wherever it is made."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGURATIONS[kind]).float().eval()


def save(kind: str, seed: int, folder: Path) -> Path:
    """As a checkpoint in bfloat16, with a tokenizer that has a word for every token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    where = folder / f"{kind}-{seed}"
    make(kind, seed).bfloat16().save_pretrained(where)
    words = {f"t{number}": number for number in range(CONFIGURATIONS[kind].vocab_size)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(where)
    return where


def greedy_tokens(kind: str, seed: int) -> list[int]:
    """What transformers generates in the type that engines serve."""
    model = make(kind, seed).bfloat16()
    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(TOKENS):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]
