"""What tests under fire share: where they run, and one shot after another."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from processes import Start
from two_hosts import TwoHosts

WHERE = pytest.mark.parametrize("where", ["one host", "two hosts"])
Target = TypeVar("Target")
Shot = TypeVar("Shot", contravariant=True)


class Chaos(Protocol[Shot]):
    def fire(self, shot: Shot) -> None: ...


def start_chaos(
    make: Callable[[Start, Path, TwoHosts | None], Target], where: str, start: Start, folder: Path
) -> Target:
    """What `make` starts there; between two hosts only for root."""
    if where == "one host":
        return make(start, folder, None)
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    return make(start, folder, TwoHosts(start))


def fire_all(chaos: Chaos[Shot], shots: Sequence[Shot]) -> None:
    """An error names the shots up to the one that it came from."""
    for number, shot in enumerate(shots):
        try:
            chaos.fire(shot)
        except BaseException as error:
            error.add_note(f"after {shots[:number]}, at {shot}")
            raise
