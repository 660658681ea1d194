"""Parametrised tests whose programs take one core each, run two at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")


@contextmanager
def two_at_a_time(
    session: pytest.Session, test: str, parameter: str, run: Callable[[Any], Result]
) -> Iterator[dict[Any, Future[Result]]]:
    """What `run` returns for each value that the chosen tests of this name have for a parameter.

    It must end by itself: whoever leaves waits for those that run.
    """
    chosen = [
        item.callspec.params[parameter]
        for item in session.items
        if isinstance(item, pytest.Function) and item.originalname == test
    ]
    with ThreadPoolExecutor(2) as pool:
        try:
            yield {each: pool.submit(run, each) for each in dict.fromkeys(chosen)}
        finally:
            pool.shutdown(cancel_futures=True)
