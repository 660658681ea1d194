"""Two trainer ranks hand a transformer's weights to two inference ranks, round after round.

Trainers hold rows in float32, engines columns in bfloat16. All are separate programs, each with the
agent of its rank; `examples/demo.py` starts them, and tells the trainers when to begin a round.

    AGENT_RANK=0 python examples/weight_sync.py trainer --store tensorbus://127.0.0.1:29500
"""

import argparse
import threading
import time

import tensorbus
import torch
from tensorbus import PeerLostError, Shard
from tensorbus.kvstore import CoreStore, connect
from torch import nn

RANKS = 2  # of each side


def make_model() -> nn.Module:
    torch.manual_seed(7)
    layer = nn.TransformerEncoderLayer(d_model=768, nhead=12, dim_feedforward=3072)
    body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.ModuleDict({"words": nn.Embedding(9999, 768), "body": body})


@torch.no_grad()
def train(tensor: torch.Tensor) -> None:
    """Stands for a step of the optimiser; element by element, so that engines can check it."""
    tensor.mul_(0.9).add_(0.001)


def trainer(store: CoreStore, rounds: int) -> None:
    client, info = tensorbus.bootstrap_client()
    rows = {
        name: tensorbus.share_(weight.detach().chunk(RANKS, 0)[info.agent_rank].clone())
        for name, weight in make_model().named_parameters()
    }
    client.init_pair("weights", "trainers", "engines", RANKS, (RANKS,), [Shard(0)])
    batch = client.register_tensors("model", [(t, "weights", n) for n, t in rows.items()])
    for step in range(1, rounds + 1):
        store.wait_for_key(f"go/{step}", timeout=60)
        for tensor in rows.values():
            train(tensor)
        store.set(f"sending/{step}/{info.agent_rank}", "")
        begin = time.perf_counter()
        try:
            batch.transfer("send", blocking=True)
            end = "read by all"
        except PeerLostError as error:
            end = ", ".join(f"{rank} {how}" for rank, how in sorted(error.readers.items()))
        seconds = time.perf_counter() - begin
        store.set(f"sent/{step}/{info.agent_rank}", f"{seconds} {end}")
    client.close()


def engine(store: CoreStore, rounds: int, hangs_in: int = 0) -> None:
    client, info = tensorbus.bootstrap_client()
    mine = info.agent_rank - RANKS
    whole = {name: weight.detach() for name, weight in make_model().named_parameters()}
    columns = {
        name: tensorbus.empty(weight.chunk(RANKS, -1)[mine].shape, torch.bfloat16)
        for name, weight in whole.items()
    }
    client.init_pair("weights", "engines", "trainers", RANKS, (RANKS,), [Shard(-1)])
    batch = client.register_tensors("model", [(t, "weights", n) for n, t in columns.items()])
    trained = 0
    while trained < rounds:
        if trained + 1 == hangs_in:
            store.set(f"ready/{info.agent_rank}", str(trained))
            threading.Event().wait()  # until it is killed
        recv = batch.transfer("recv")
        store.set(f"ready/{info.agent_rank}", str(trained))
        show_progress(recv, store, info.agent_rank)
        done = recv.result(timeout=60)
        store.set(f"read/{done.round}/{info.agent_rank}", "")
        for _ in range(done.round - trained):  # one that was restarted has missed some
            for weight in whole.values():
                train(weight)
        trained = done.round
        for name, weight in whole.items():
            expected = weight.chunk(RANKS, -1)[mine].to(torch.bfloat16)
            if not torch.equal(columns[name], expected):
                raise SystemExit(f"round {done.round}: {name} is wrong")
        count = sum(tensor.numel() for tensor in columns.values())
        store.set(f"verified/{done.round}/{info.agent_rank}", str(count))
    client.close()


def show_progress(recv: tensorbus.Transfer, store: CoreStore, rank: int) -> None:
    def report() -> None:
        while not recv.done():
            if recv.progress.total:
                store.set(f"progress/{rank}", str(recv.progress.done / recv.progress.total))
            time.sleep(0.02)

    threading.Thread(target=report, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=["trainer", "engine"])
    parser.add_argument("--store", required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--hangs-in", type=int, default=0, help="an engine: the round to hang in")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with connect(arguments.store, component="demo") as store:
        if arguments.role == "trainer":
            trainer(store, arguments.rounds)
        else:
            engine(store, arguments.rounds, arguments.hangs_in)


if __name__ == "__main__":
    main()
