"""A worker in a process of its own, for tests that kill it. It needs no torch."""

from __future__ import annotations

import json
from typing import Any

from buses import Bus
from processes import Process, Start

SCRIPT = """
import json, sys, threading, time
import numpy as np
import tensorbus

queue, state, namespace, rank, side, other, size, count = sys.argv[1:]
client = tensorbus.TensorBusClient(int(rank), queue, state, namespace=namespace)
client.init_pair("p", side, other, int(size), (int(size),), [tensorbus.Shard(0)])
array = np.zeros(int(count), dtype=np.int8)
batch = client.register_tensors("batch", [(array, "p")])
print("registered")

def tell(**what):
    print(json.dumps(what | {"at": time.monotonic()}))

def tell_error(error):
    readers = dict(getattr(error, "readers", {}))
    tell(error=type(error).__name__, message=str(error), readers=readers)

def report(transfer):
    try:
        result = transfer.result(60)
        tell(round=result.round, readers=result.readers)
    except Exception as error:
        tell_error(error)

for line in sys.stdin:
    command, *value = line.split()
    if command == "fill":
        array[:] = int(value[0])
        print("filled")
    elif command == "sees":
        print(json.dumps([int(array.min()), int(array.max())]))
    elif command == "name":
        print(transfer.name)
    elif command == "register":
        try:
            batch.close()
            batch = client.register_tensors("batch", [(array, "p")])
            print("registered")
        except Exception as error:
            tell_error(error)
    else:
        try:
            transfer = batch.transfer(command)
        except Exception as error:
            print("started")
            tell_error(error)
            continue
        print("started")
        threading.Thread(target=report, args=[transfer], daemon=True).start()
"""


class RemoteWorker:
    """Holds `count` bytes of batch "batch" on its side of pair "p", Shard(0) over `size` ranks."""

    def __init__(
        self,
        start_python: Start,
        bus: Bus,
        rank: int,
        *,
        side: str,
        other: str,
        size: int = 1,
        count: int = 8,
    ) -> None:
        self.ended_at = 0.0  # when its last outcome came, by the clock that all processes share
        self.readers: dict[str, str] = {}  # of its last send
        if rank not in bus.agents:
            bus.start_agent(rank)
        paths = bus.queue_path(rank), bus.state_path(rank)
        self.process: Process = start_python(
            SCRIPT, *paths, bus.namespace, rank, side, other, size, count
        )

    def registered(self) -> None:
        assert self.process.line(30) == "registered"

    def ask(self, command: str) -> str:
        self.process.tell(command)
        return self.process.line()

    def start(self, direction: str) -> None:
        assert self.ask(direction) == "started"

    def has_outcome(self) -> bool:
        """Whether one comes within a moment."""
        return self.process.has_line(0.1)

    def outcome(self, timeout: float = 30.0) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.process.line(timeout))
        self.ended_at = answer.pop("at")
        if "round" in answer:
            self.readers = answer.pop("readers")
        else:
            self.readers = answer["readers"]
        return answer

    def sees(self) -> list[int]:
        answer: list[int] = json.loads(self.ask("sees"))
        return answer

    def kill(self) -> None:
        self.process.kill()
