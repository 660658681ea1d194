"""Memory that an agent may still touch although its owner was dropped: kept until it has let go."""

import atexit
import itertools
import time
from typing import Any

from tensorbus import _core

_kept: dict[int, tuple[_core.BusParting | None, Any]] = {}
_numbers = itertools.count()
_PATIENCE_AT_EXIT = 3.0


def keep_until(parting: _core.BusParting | None, held: Any) -> None:
    """Keeps what an agent may touch until it has let go; None: for as long as this process lives.

    Called by destructors, so on any thread between any two statements: single dictionary
    operations only.
    """
    _kept[next(_numbers)] = parting, held
    for number, (each, _) in list(_kept.items()):
        if each is not None and each.done():
            _kept.pop(number, None)


@atexit.register
def _wait_at_exit() -> None:
    end = time.monotonic() + _PATIENCE_AT_EXIT
    for parting, _ in list(_kept.values()):
        while parting is not None and not parting.done() and time.monotonic() < end:
            time.sleep(0.005)
