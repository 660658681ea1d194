"""A rank of links whose tensors are on a device, in a process of its own: see test_links.py.

Two trainers hold halves of a matrix, one of them transposed; the engine holds a box of it in
another type and pitch, and all of it in the host's memory. Every line that is read is a command,
every answer is a line.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorbus
from device_array import BFLOAT16, CudaArray, DeviceArray, FrameworkArray

ROWS, COLUMNS = 64, 3000
HALF = ROWS // 2
BOX = slice(16, 2500)
Array = npt.NDArray[Any]


def matrix(version: int) -> Array:
    return np.random.default_rng(version).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def counts(version: int) -> Array:
    return np.arange(70_000, dtype=np.int64) * version


def as_bfloat16(values: Array) -> Array:
    """The bits, rounded to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Trainer:
    def __init__(self, rank: int) -> None:
        half = np.zeros((HALF, COLUMNS), np.float32)
        if rank == 1:  # its neighbours are columns
            half = np.zeros((COLUMNS, HALF), np.float32).T
        self.rows = slice(rank * HALF, (rank + 1) * HALF)
        self.part = FrameworkArray(half) if rank == 0 else DeviceArray(half)
        self.counts = DeviceArray(counts(0), device=1)

    def state(self) -> dict[str, Any]:
        part = tensorbus.Part(self.part, (ROWS, COLUMNS), (self.rows.start, 0))
        return {"w": part, "counts": CudaArray(self.counts)}

    def fill(self, version: int) -> None:
        self.part.write(matrix(version)[self.rows])
        self.counts.write(counts(version))


class Engine:
    def __init__(self) -> None:
        pitched = np.zeros((ROWS, COLUMNS), np.uint16)[:, BOX]
        self.box = DeviceArray(pitched, dlpack_type=BFLOAT16)
        self.counts = FrameworkArray(counts(0))

    def state(self) -> dict[str, Any]:
        box = tensorbus.Part(self.box, (ROWS, COLUMNS), (0, BOX.start))
        return {"w": box, "counts": self.counts}

    def spoil(self) -> None:
        """By kernels that are still to run when the call comes."""
        self.box.write(np.full(self.box.shape, 0xABCD, np.uint16))
        self.counts.write(counts(0))

    def problem(self, version: int) -> str:
        wrong = self.box.read() != as_bfloat16(matrix(version))[:, BOX]
        if wrong.any():
            return f"{wrong.sum()} elements of the box are wrong"
        wrong = self.counts.read() != counts(version)
        return f"{wrong.sum()} counts are wrong" if wrong.any() else "right"


def main() -> None:
    url, namespace, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    client = tensorbus.TensorBusClient.embedded(url, rank, namespace)
    engine, trainer = Engine(), Trainer(rank)
    sides = ("engine", "trainer", 1) if rank == 2 else ("trainer", "engine", 2)
    link = client.link(*sides)
    print("ready")
    for line in sys.stdin:
        command, version = line.split()
        try:
            print(carry_out(link, command, int(version), trainer, engine))
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    link.close()
    client.close()
    print("closed")


def carry_out(
    link: tensorbus.Link, command: str, version: int, trainer: Trainer, engine: Engine
) -> str:
    if command in ("publish", "send"):
        trainer.fill(version)
        if command == "publish":
            link.publish("policy", trainer.state(), version=version)
        else:
            link.send_state_dict("policy", trainer.state(), version=version, min_readers=1)
        trainer.part.write(np.zeros_like(matrix(0)[trainer.rows]))  # they are the caller's again
        return "done"
    if command == "publish_early":  # as if nobody had asked for the stream that writes
        trainer.fill(version)
        idle = trainer.part.driver.new_stream()
        link.publish("early", {"w": trainer.state()["w"]}, version=version, stream=idle)
        return "done"
    if command == "pull_early":
        link.pull("early", {"w": engine.state()["w"]}, version=version)
        return engine.problem(version)
    engine.spoil()
    call = link.pull if command == "pull" else link.recv_state_dict
    call("policy", engine.state(), version=version)
    return engine.problem(version)


main()
