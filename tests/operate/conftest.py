from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import Job
from processes import Start, StartServer


@pytest.fixture
def start_job(start_python: Start, start_server: StartServer, tmp_path: Path) -> Callable[..., Job]:
    def start(server: Any = None, **options: Any) -> Job:
        return Job(start_python, server or start_server(), tmp_path, **options)

    return start
