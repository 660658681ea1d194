"""What an update of a vLLM engine takes, beside vLLM loading the same weights from a disk.

Run by ``tools/test_plugins --figures`` in the environment that has vLLM. The trainer is this
process, the engine another, with one worker each for every tensor-parallel rank. Each round
measures every way once, in an order that turns; ratios are taken round by round. "Disk" is what a
trainer without a transport does: it saves a checkpoint, in the type that is served, and has vLLM
reload it; the file stays in the page cache. vLLM's own transports (NCCL, CUDA IPC, RDT) need a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from report import print_table, ratio, spread

ROUNDS = 7
WAYS = ("staged", "direct", "auto", "disk", "disk, reload alone")


def make_model(folder: Path) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192, hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
            num_attention_heads=8, num_key_value_heads=4, head_dim=64, tie_word_embeddings=False,
            max_position_embeddings=256,
        )
    )  # fmt: skip
    model.bfloat16().save_pretrained(folder)
    return model.float()


class Client:
    """How a trainer in this process calls the engine."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._llm.finish_weight_update(weight_version)


def start_engine(folder: Path, ranks: int) -> Any:
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1",
        VLLM_ENGINE_READY_TIMEOUT_S="1800",
    )  # fmt: skip
    from vllm import LLM

    return LLM(
        model=str(folder), skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16",
        tensor_parallel_size=ranks, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64,
        weight_transfer_config={"backend": "tensorbus"},
    )  # fmt: skip


def ways(llm: Any, model: Any, folder: Path, store: str) -> dict[str, Callable[[], object]]:
    from tensorbus.vllm.sending import EngineSender
    from tensorbus.vllm.source import TensorBusSource

    source = TensorBusSource(model, dtype=torch.bfloat16)
    calls: dict[str, Callable[[], object]] = {}

    def by(mode: str) -> Callable[[], object]:
        sender = EngineSender(store, sender=mode, dtype=torch.bfloat16, mode=mode)

        def update() -> object:
            return sender.send(source.tensors())

        client = Client(llm)
        sender.join(client, source.metadata())
        update()
        return update

    def reload() -> object:
        return llm.collective_rpc("reload_weights")

    def by_disk() -> object:
        model.bfloat16().save_pretrained(folder)
        model.float()
        return reload()

    for mode in WAYS[:3]:
        calls[mode] = by(mode)
    return calls | {"disk": by_disk, "disk, reload alone": reload}


def measure(calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(ROUNDS + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.perf_counter()
            calls[name]()
            if number > 0:  # the first warms up
                seconds[name].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel, of the engine")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder)
        llm = start_engine(folder, options.ranks)
        from tensorbus.kvstore import StoreServer

        with StoreServer("127.0.0.1", 0) as store:
            seconds = measure(ways(llm, model, folder, store.url))
    size = 2 * sum(each.numel() for each in model.parameters()) / 1e6
    print(f"{size:.0f} MB of bfloat16, {options.ranks} ranks, {ROUNDS} rounds")
    rows = [
        [name, spread([1e3 * each for each in taken]).text(0),
         ratio(taken, seconds["disk"]).text(2)]
        for name, taken in seconds.items()
    ]  # fmt: skip
    print_table(["way", "ms", "x disk"], rows)
    if options.json:
        options.json.write_text(json.dumps([{"name": n, "seconds": s} for n, s in seconds.items()]))


if __name__ == "__main__":
    main()
