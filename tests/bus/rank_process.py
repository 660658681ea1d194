"""A process of the random tests: one embedded rank, and one with a daemon. Runs cases by seed, of
batches or of links.

python rank_process.py URL NAMESPACE INDEX RANKS FOLDER
"""

import json
import sys
import traceback
from functools import partial

import torch
from buses import together
from cases import Case, fill, make_case, other, place_for, placements_of
from link_cases import LinkCase, make_link_case, run_link
from tensorbus import BatchHandler, Link, TensorBusClient
from torch_oracle import same_bits

TIMEOUT = 40.0


def run_side(client: TensorBusClient, case: Case, rank: int, side: str, name: str) -> BatchHandler:
    """What a rank does on one side of a case; `name` keeps cases apart. The batch stays open: a
    sender that closes it ends it for all."""
    both = rank in case.senders and rank in case.receivers
    role = side if both else None
    for number, placed in enumerate(case.pairs):
        mine = placed[side == "receivers"]
        client.init_pair(
            f"{name}/{number}", side, other(side), len(case.ranks(side)),
            mine.mesh, placements_of(mine), timeout=TIMEOUT,
        )  # fmt: skip
    places = [place_for(case, tensor, side, rank) for tensor in case.tensors]
    items = [
        (place, f"{name}/{tensor.pair}", tensor.name)
        for place, tensor in zip(places, case.tensors, strict=True)
    ]
    handler = client.register_tensors(
        name, items, case.bucket_size, TIMEOUT, role=role, verify=case.verify
    )
    if side == "senders":
        send(handler, case, side, rank, places)
    else:
        receive(handler, case, side, rank, places)
    if case.reverses:
        # The other way round, with new contents.
        backwards = 5
        if side == "receivers":
            load(case, side, rank, places, backwards)
            handler.transfer("send").result(TIMEOUT)
        else:
            handler.transfer("recv").result(TIMEOUT)
            compare(case, side, rank, places, backwards)
    return handler


def load(case: Case, side: str, rank: int, places: list[torch.Tensor], step: int) -> None:
    for place, tensor in zip(places, case.tensors, strict=True):
        fill(place, case.held(tensor, side, rank, step))


def compare(case: Case, side: str, rank: int, places: list[torch.Tensor], step: int) -> None:
    for place, tensor in zip(places, case.tensors, strict=True):
        expected = case.expected(tensor, side, rank, step)
        assert same_bits(place, expected), f"{side} {rank}: {tensor} in step {step}"


def send(
    handler: BatchHandler, case: Case, side: str, rank: int, places: list[torch.Tensor]
) -> None:
    if case.queued:
        load(case, side, rank, places, 0)
        for transfer in [handler.transfer("send") for _ in range(case.rounds)]:
            transfer.result(TIMEOUT)
        return
    for step in range(case.rounds):
        load(case, side, rank, places, step)
        handler.transfer("send", blocking=True, timeout=TIMEOUT)


def receive(
    handler: BatchHandler, case: Case, side: str, rank: int, places: list[torch.Tensor]
) -> None:
    if case.queued:
        for transfer in [handler.transfer("recv") for _ in range(case.rounds)]:
            transfer.result(TIMEOUT)
        compare(case, side, rank, places, 0)
        return
    for step in range(case.rounds):
        handler.transfer("recv", blocking=True, timeout=TIMEOUT)
        compare(case, side, rank, places, step)


def run_batches(clients: dict[int, TensorBusClient], case: Case) -> list[BatchHandler]:
    name = f"case {case.seed}"
    return together(
        *(
            partial(run_side, client, case, rank, side, name)
            for rank, client in clients.items()
            for side in ("senders", "receivers")
            if rank in case.ranks(side)
        )
    )


def run_links(
    clients: dict[int, TensorBusClient], case: LinkCase
) -> tuple[list[Link], dict[int, list[int]]]:
    """And the versions that each receiver of this process got."""
    calls = {
        rank: partial(run_link, client, case, rank, side)
        for rank, client in clients.items()
        for side in ("senders", "receivers")
        if rank in case.ranks(side)
    }
    made = together(*calls.values())
    got = {rank: versions for rank, (_, versions) in zip(calls, made, strict=True) if versions}
    return [link for link, _ in made], got


def main() -> None:
    url, namespace, index, ranks, folder = sys.argv[1:]
    torch.set_num_threads(1)
    own = [int(index), int(index) + 10]
    clients = {
        own[0]: TensorBusClient.embedded(url, own[0], namespace),
        own[1]: TensorBusClient(
            own[1], f"{folder}/{own[1]}.q", f"{folder}/{own[1]}.s", namespace=namespace
        ),
    }
    print("ready")
    while line := sys.stdin.readline():
        kind, seed = line.split()
        used: list[BatchHandler] | list[Link]
        try:
            if kind == "link":
                used, got = run_links(clients, make_link_case(int(seed), json.loads(ranks)))
                print(json.dumps({"got": got}))
            else:
                used = run_batches(clients, make_case(int(seed), json.loads(ranks)))
                print(json.dumps({"got": {}}))
            sys.stdin.readline()  # all are done
            for each in used:
                each.close()
        except BaseException:
            print(json.dumps({"error": traceback.format_exc()[-3000:]}))


main()
