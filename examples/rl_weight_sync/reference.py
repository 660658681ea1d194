"""What was published, written down by the trainers and compared by the engines.

Nothing here knows of tensorbus: the slices of an engine rank are made with torch alone.
"""

from pathlib import Path

import torch
from model import KV_HEADS, LAYERS, LETTERS, PADDED_TO

RANKS = 2  # of the trainer: each writes its rows


def write(folder: Path, version: int, rank: int, shards: dict[str, torch.Tensor]) -> None:
    """Before the version is published, so that who has pulled it finds it."""
    narrow = {name: shard.to(torch.bfloat16) for name, shard in shards.items()}
    torch.save(narrow, folder / f"{version}.{rank}.being_written")
    (folder / f"{version}.{rank}.being_written").rename(folder / f"{version}.{rank}.pt")


def compare(
    folder: Path, version: int, weights: dict[str, torch.Tensor], rank: int, size: int
) -> int:
    """How many bytes were compared, bit for bit. Raises if one is wrong."""
    shards = [torch.load(folder / f"{version}.{each}.pt") for each in range(RANKS)]
    whole = {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]}
    wanted = as_served(whole, rank, size)
    if wanted.keys() != weights.keys():
        raise AssertionError(f"other tensors: {sorted(wanted.keys() ^ weights.keys())}")
    for name, tensor in weights.items():
        if not torch.equal(tensor.view(torch.int16), wanted[name].view(torch.int16)):
            raise AssertionError(f'version {version}: "{name}" of rank {rank} is wrong')
    return sum(tensor.nbytes for tensor in weights.values())


def as_served(whole: dict[str, torch.Tensor], rank: int, size: int) -> dict[str, torch.Tensor]:
    """The whole policy as one engine rank should have it: fused, cut and padded."""
    served = dict(whole)

    def cut(name: str, dim: int, pieces: int = size) -> torch.Tensor:
        return served.pop(name).chunk(pieces, dim)[rank * pieces // size]

    for layer in (f"layers.{number}." for number in range(LAYERS)):
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        heads = [cut(f"{attention}q_proj.weight", 0)]
        heads += [cut(f"{attention}{kv}_proj.weight", 0, min(KV_HEADS, size)) for kv in "kv"]
        served[f"{attention}qkv_proj.weight"] = torch.cat(heads)
        halves = [cut(f"{mlp}{name}_proj.weight", 0) for name in ("gate", "up")]
        served[f"{mlp}gate_up_proj.weight"] = torch.cat(halves)
        for name in (f"{attention}o_proj.weight", f"{mlp}down_proj.weight"):
            served[name] = cut(name, 1).contiguous()
    rows = -(-len(LETTERS) // size // PADDED_TO) * PADDED_TO
    padded = torch.zeros(rows * size, whole["lm_head.weight"].shape[1], dtype=torch.bfloat16)
    padded[: len(LETTERS)] = whole["lm_head.weight"]
    served["lm_head.weight"] = padded[rank * rows : (rank + 1) * rows]
    return served
