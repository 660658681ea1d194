"""What an update of a vLLM engine takes, beside vLLM loading the same weights from a disk.

Run by ``tools/test_plugins --figures`` in the environment that has vLLM. The trainer is this
process, the engine another, with one worker each for every tensor-parallel rank. Each round
measures every way once, in an order that turns; ratios are taken round by round. "Disk" is what a
trainer without a transport does: it saves a checkpoint, in the type that is served, and has vLLM
reload it; the file stays in the page cache. "collective_rpc" is the one way of vLLM itself that
runs on a CPU: a function that has the tensors is pickled, and the engine passes it on to its
workers. vLLM's own transports (NCCL, CUDA IPC, RDT) need a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
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
MODES = ("staged", "direct", "auto")


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
        VLLM_ENGINE_READY_TIMEOUT_S="1800", VLLM_ALLOW_INSECURE_SERIALIZATION="1",
    )  # fmt: skip
    from vllm import LLM

    return LLM(
        model=str(folder), skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16",
        tensor_parallel_size=ranks, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64,
        weight_transfer_config={"backend": "tensorbus"},
    )  # fmt: skip


def modes_of(llm: Any) -> list[str]:
    """On a CPU for which vLLM has such kernels (AVX-512) its layers compute with packed copies of
    their weights, throw those away, and nothing can be filled in place of them."""
    digests = llm.collective_rpc("compute_weight_checksums")[0].values()
    packs = hashlib.sha256().hexdigest() in digests  # there is a weight without elements
    return [mode for mode in MODES if mode != "direct" or not packs]


class Way:
    """One way to bring the trainer's weights into the engine."""

    def __init__(self, run: Callable[[], object], prepare: Callable[[], object] = lambda: None):
        self.run = run
        self.prepare = prepare  # not measured: what is done once, before the first update


def by_tensorbus(llm: Any, source: Any, store: str, mode: str) -> Way:
    from tensorbus.vllm.sending import EngineSender

    sender = EngineSender(store, sender=mode, dtype=source.dtype, mode=mode)
    client = Client(llm)

    def join() -> None:
        """An engine has one trainer, and one mode, at a time; the first update warms up."""
        sender.leave(client)
        sender.join(client, source.metadata())
        sender.send(source.tensors())

    return Way(lambda: sender.send(source.tensors()), join)


def ways(llm: Any, model: Any, folder: Path, store: str) -> dict[str, Way]:
    from tensorbus.vllm.source import TensorBusSource

    source = TensorBusSource(model, dtype=torch.bfloat16)

    def reload() -> object:
        return llm.collective_rpc("reload_weights")

    def by_disk() -> object:
        narrowed = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
        model.save_pretrained(folder, state_dict=narrowed)
        return reload()

    def by_call() -> object:
        tensors = list(source)

        def reload_these(worker: Any) -> None:
            worker.reload_weights(weights_iterator=iter(tensors))

        return llm.collective_rpc(reload_these)

    calls = {mode: by_tensorbus(llm, source, store, mode) for mode in modes_of(llm)}
    others = {"disk": by_disk, "disk, reload alone": reload, "collective_rpc": by_call}
    return calls | {name: Way(run) for name, run in others.items()}


def measure(calls: dict[str, Way]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(ROUNDS + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            calls[name].prepare()
            began = time.perf_counter()
            calls[name].run()
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
    if "direct" not in seconds:
        print("direct: refused, since layers compute with packed copies on this CPU")
    if options.json:
        options.json.write_text(json.dumps([{"name": n, "seconds": s} for n, s in seconds.items()]))


if __name__ == "__main__":
    main()
