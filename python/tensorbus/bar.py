"""A line at a terminal that shows how far bytes have come."""

from __future__ import annotations

import importlib
import sys
from types import TracebackType
from typing import Any, TextIO

_WIDTH = 28


class Bar:
    """Called with the bytes that are done and all there are: ``tqdm`` where that is installed, else
    a line of our own; nothing at all where ``stream`` (default: the standard error) is no terminal.
    """

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._tqdm: Any = None
        self._line = ""
        self._total = 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self, done: int, total: int) -> None:
        if not self._shown or total == 0:
            return
        self._total = total
        if self._tqdm is None and not self._line:
            self._tqdm = self._their_bar(total)
        if self._tqdm is not None:
            self._tqdm.update(done - self._tqdm.n)
            return
        filled = _WIDTH * done // total
        self._write(
            f"{self._what} [{'#' * filled}{'.' * (_WIDTH - filled)}] "
            f"{100 * done // total:3} % of {total / 1e9:.2f} GB"
        )

    def fill(self) -> None:
        """All of it is done; nothing if it was over before anything was shown."""
        self(self._total, self._total)

    def close(self) -> None:
        """The terminal is as it was, on a new line if there was one of ours."""
        if self._tqdm is not None:
            self._tqdm.close()
        elif self._line:
            self._stream.write("\n")
            self._stream.flush()
        self._shown = False

    def _their_bar(self, total: int) -> Any:
        try:
            tqdm = importlib.import_module("tqdm")
        except ImportError:
            return None
        return tqdm.tqdm(total=total, desc=self._what, unit="B", unit_scale=True, file=self._stream)

    def _write(self, line: str) -> None:
        if line != self._line:
            self._stream.write("\r" + line)
            self._stream.flush()
        self._line = line
