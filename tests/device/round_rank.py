"""A rank of a batch whose tensors are on a device, in a process of its own: see test_rounds.py.

Ranks 0 and 1 hold parts of a sum, rank 2 has the half of it that it reads in another type. Every
line that is read is a command, every answer is a line.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorbus
from device_array import DeviceArray, FrameworkArray
from tensorbus import Partial, Replicate, Shard

ROWS, COLUMNS = 40, 9000
Array = npt.NDArray[Any]


def values(rank: int, number: int) -> Array:
    """Whole numbers, which are added without rounding."""
    rng = np.random.default_rng(10 * number + rank)
    return rng.integers(-1000, 1000, (ROWS, COLUMNS)).astype(np.float32)


def main() -> None:
    url, namespace, rank, verify = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    client = tensorbus.TensorBusClient.embedded(url, rank, namespace)
    if rank < 2:
        client.init_pair("sums", "a", "b", 2, (2,), [Partial("sum")])
        client.init_pair("rows", "a", "b", 2, (2,), [Shard(0)])
    else:
        client.init_pair("sums", "b", "a", 1, (1,), [Replicate()])
        client.init_pair("rows", "b", "a", 1, (1,), [Replicate()])
    half = ROWS // 2
    if rank < 2:
        tensor = FrameworkArray(values(rank, 0))
        rows = DeviceArray(values(rank, 0)[:half])
    else:
        tensor = DeviceArray(np.zeros((ROWS, COLUMNS + 50))[:, :COLUMNS], device=1)
        rows = FrameworkArray(np.zeros((ROWS, COLUMNS), np.float32))
    options: dict[str, Any] = {"verify": verify} if verify else {}
    handler = client.register_tensors(
        "x", [(tensor, "sums", "t"), (rows, "rows", "r")], 1 << 18, timeout=60, **options
    )
    print("ready")
    for line in sys.stdin:
        command, number = line.split()
        try:
            print(carry_out(handler, rank, command, int(number), tensor, rows))
        except Exception as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "))
    client.close()


def carry_out(
    handler: tensorbus.BatchHandler,
    rank: int,
    command: str,
    number: int,
    tensor: DeviceArray,
    rows: DeviceArray,
) -> str:
    half = ROWS // 2
    if command == "recv":
        tensor.write(np.full(tensor.shape, 7.0))
        rows.write(np.full(rows.shape, 7.0, np.float32))
        handler.transfer("recv", blocking=True, timeout=60)
        sums = values(0, number) + values(1, number)
        whole = np.concatenate([values(each, number)[:half] for each in (0, 1)])
        right = (tensor.read() == sums).all() and (rows.read() == whole).all()
        return "right" if right else "wrong"
    tensor.write(values(rank, number))
    rows.write(values(rank, number)[:half])
    if command == "send":
        handler.transfer("send", blocking=True, timeout=60)
        return "done"
    sending = handler.transfer("send")
    handler.query_transfer_signal(timeout=30)  # it is offered: the checksums are made
    tensor.write(values(rank, number) + 1)
    tensor.finish()
    print("offered")
    sending.result(60)
    return "done"


main()
