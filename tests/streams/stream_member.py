"""A sender or a receiver of a stream in a process of its own: ``stream_member.py ROLE URL ...``.

What it sends follows from a version alone, so that every receiver can check it.
"""

import asyncio
import sys
import time

import torch
from tensorbus.streams import Receiver, Sender

SIZES = [(3, 5), (), (0, 4), (257,), (64, 64), (1,), (2, 3, 4), (300, 100)]


def tensors(version: int) -> dict[str, torch.Tensor]:
    """The last is larger than a bucket."""
    generator = torch.Generator().manual_seed(version)
    made = {
        f"layer.{number}": torch.randn(sizes, generator=generator)
        for number, sizes in enumerate(SIZES)
    }
    made["half"] = torch.randn(40, generator=generator).to(torch.bfloat16).t()
    made["flags"] = torch.tensor([True, False, version % 2 == 0])
    made["count"] = torch.arange(version, version + 50)
    made["view"] = torch.arange(60.0).reshape(6, 10)[::2, 1::3] + version
    return made


def send(url: str, index: int, senders: int, receivers: str, *more: str) -> None:
    with Sender(
        url, "policy", index=index, senders=senders, bucket_bytes=4096, depth=2, timeout=20.0
    ) as sender:
        print("here")
        for line in sys.stdin:
            version = int(line)
            try:
                slowly = _slowly(version) if "slow" in more else tensors(version).items()
                sent = sender.send(slowly, receivers.split(","), version=version)
                print("sent", *sent)
            except Exception as error:
                print(type(error).__name__, error)


def _slowly(version: int):
    for number, item in enumerate(tensors(version).items()):
        if number == 3:
            print("in the middle")
        time.sleep(0.3)
        yield item


def receive(url: str, member: str, *more: str) -> None:
    with Receiver(url, "policy", member, timeout=20.0) as receiver:
        print("here")
        for line in sys.stdin:
            try:
                found = dict(_received(receiver, line.strip(), more))
                same = _same(found, tensors(receiver.version))
                print(receiver.version, len(found), same, *sorted(receiver.paths))
            except Exception as error:
                print(type(error).__name__, error)


def _received(receiver: Receiver, version: str, more):
    number = int(version) if version else None
    if "async" not in more:
        return receiver.receive(number)

    async def all_of_it():
        return [item async for item in receiver.receive_async(number)]

    return asyncio.run(all_of_it())


def _same(found, expected) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        for name, tensor in expected.items()
    )


if __name__ == "__main__":
    role, url, *rest = sys.argv[1:]
    if role == "send":
        send(url, int(rest[0]), int(rest[1]), *rest[2:])
    else:
        receive(url, *rest)
