"""How a process of the run tells run.py what it does, and ends when run.py does."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any


def end_with_parent() -> None:
    """run.py holds the other end of our standard input: it is closed by whatever ends run.py."""

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def tell(event: str, **more: Any) -> None:
    """One line for run.py, in one piece: the trainers share a pipe. The clock is the host's."""
    line = {"lane": os.environ["LANE"], "event": event, "end": time.monotonic(), **more}
    os.write(1, (json.dumps(line) + "\n").encode())


@contextlib.contextmanager
def telling(event: str, **more: Any) -> Iterator[dict[str, Any]]:
    """Tells how long the block took, with what it adds to the dictionary."""
    begin = time.monotonic()
    yield more
    tell(event, begin=begin, end=time.monotonic(), **more)
