"""What this process counts, and its timeline."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tensorbus import _core

_open: dict[str, _core.TraceFile] = {}
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
# By name, each series with its labels.
Stats = dict[str, list[tuple[dict[str, str], Any]]]


def profiled(call: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A range of ``torch.profiler`` around the call, while that records; else nothing. Torch is
    not imported for it."""
    name = f"tensorbus.{call.__name__}"

    @functools.wraps(call)
    def ranged(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        torch = sys.modules.get("torch")
        if torch is None or not torch.autograd._profiler_enabled():
            return call(*arguments, **named)
        with torch.profiler.record_function(name):
            return call(*arguments, **named)

    return ranged


def stats() -> Stats:
    """The numbers of this process, as its page of metrics has them.

    By name, without the ``_total`` of counters, a list of ``(labels, value)``; the value of a
    histogram is a dictionary with its ``count`` and its ``sum`` in seconds. An agent that runs as
    a process of its own counts there, not here.
    """
    return _core.stats()


def stats_of(namespace: str, rank: int) -> Stats:
    """Those of one agent of this process, without its two labels."""
    own = {"namespace": namespace, "rank": str(rank)}
    found: Stats = {}
    for name, series in stats().items():
        of_it = [
            ({label: text for label, text in labels.items() if label not in own}, value)
            for labels, value in series
            if labels.items() >= own.items()
        ]
        if of_it:
            found[name] = of_it
    return found


def trace(folder: str | os.PathLike[str] | None) -> str | None:
    """From now on writes what this process does to a new file in ``folder``, and returns its path.

    The file holds Chrome trace events, which Perfetto and chrome://tracing open; what is in it is
    whole at any time, also if the process is killed. ``tensorbus trace merge`` joins the files of
    all processes. ``None`` ends the files that were begun here. The variable ``TENSORBUS_TRACE``
    does the same from the first agent of a process on.
    """
    if folder is None:
        for file in _open.values():
            file.flush()
        _open.clear()
        return None
    name = os.path.abspath(os.fspath(folder))
    if name not in _open:
        _open[name] = _core.open_trace(name)
    return _open[name].path
