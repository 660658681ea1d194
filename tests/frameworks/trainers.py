"""Trainer ranks as processes of their own."""

import json
import sys
from pathlib import Path
from typing import Any

from processes import Process, free_port

MEMBER = Path(__file__).parent / "trainer_member.py"
PATIENCE = 900.0  # frameworks take long to import on a busy machine


class Trainers:
    def __init__(self, ranks: int) -> None:
        port = free_port()
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.members = [
            Process([sys.executable, "-u", str(MEMBER), str(rank), str(ranks), str(port)],
                    environment)
            for rank in range(ranks)
        ]  # fmt: skip
        for each in self.members:
            assert answer(each) == "ready"

    def tell(self, call: str, **arguments: Any) -> list[Any]:
        """What each rank answers."""
        for each in self.members:
            self.tell_one(each, call, **arguments)
        return [answer(each) for each in self.members]

    @staticmethod
    def tell_one(member: Process, call: str, **arguments: Any) -> None:
        member.tell(json.dumps([call, arguments]))

    def kill(self) -> None:
        for each in self.members:
            each.kill()


def answer(member: Process) -> Any:
    return json.loads(member.line(PATIENCE))
