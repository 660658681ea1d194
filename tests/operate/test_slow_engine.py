"""The worked example of docs/operate.md: an engine that is slow, found by four means."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, get, start_prometheus, until
from processes import PROGRAM, Start
from test_metrics import needs_prometheus

DOCS = Path(__file__).parents[2] / "docs" / "operate.md"
SLOW = 4
OTHERS = (2, 3)


def query_of_the_docs() -> str:
    found = re.search(r"^ *(bottomk\(.*\))$", DOCS.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def pages_of(job: Job) -> set[str]:
    """Of all ranks."""
    pages: set[str] = until(
        lambda: (
            len(found := {row["metrics"] for row in job.status()["rows"]} - {""}) == 5 and found
        ),
        "the addresses of the pages",
    )
    return pages


def ask(prometheus: str, query: str) -> dict[str, float]:
    """By rank."""
    address = f"{prometheus}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        answer = json.loads(get(address))
    except OSError:
        return {}
    return {each["metric"]["rank"]: float(each["value"][1]) for each in answer["data"]["result"]}


def shows_who_is_slow(rows: list[dict[str, Any]]) -> bool:
    """The others wait for it, and for nobody else."""
    return all(
        re.fullmatch(rf"pull waits \d\.\d s for rank {SLOW}", row["doing"])
        and row["awaited"] == [SLOW]
        for row in rows
        if row["rank"] in OTHERS
    )


@needs_prometheus
@pytest.mark.timeout(300)
@pytest.mark.proves("O2.1", "O3.1", "O4.1", "O4.2")
def test_an_engine_that_is_slow_is_named_by_each_of_them(
    start_job: Callable[..., Job], start_program: Start, tmp_path: Path
):
    trace = tmp_path / "trace"
    job = start_job(
        late={SLOW: 1.0},
        env={"TENSORBUS_METRICS": "127.0.0.1:0", "TENSORBUS_TRACE": str(trace)},
    )
    job.wait_for_version(2)
    prometheus = start_prometheus(start_program, pages_of(job), tmp_path)
    page = start_program(
        str(PROGRAM), "dashboard", "--store", job.server.url, "--bind", "127.0.0.1:0"
    ).line().split()[1]  # fmt: skip
    until(lambda: shows_who_is_slow(job.status()["rows"]), "status to show rank 4")
    until(
        lambda: shows_who_is_slow(json.loads(get(page + "state.json"))["rows"]),
        "the page to show rank 4",
    )
    table = [str(PROGRAM), "status", "--store", job.server.url]
    print(subprocess.run(table, capture_output=True, text=True, check=True).stdout)
    # It waits for less than half as long as anybody else, and the query says so.
    every = query_of_the_docs().replace("bottomk(1, ", "(")
    shares = until(
        lambda: (
            len(found := ask(prometheus, every)) == 3
            and 2 * found["4"] < min(found["2"], found["3"])
            and found
        ),
        "rank 4 to stand out",
        120,
    )
    print(every, shares)
    assert ask(prometheus, query_of_the_docs()).keys() == {"4"}
    job.wait_for_version(8, 120)
    summary = subprocess.run(
        [str(PROGRAM), "trace", "summary", str(trace)], capture_output=True, text=True, check=True
    ).stdout
    print(summary)
    line = re.search(
        r"^shortest wait in a pull: rank (\d), for ([\d.]+) ms; "
        r"longest: rank (\d), for ([\d.]+) ms",
        summary,
        re.MULTILINE,
    )
    assert line is not None, summary
    assert int(line[1]) == SLOW
    assert int(line[3]) in OTHERS
    assert float(line[4]) > 2 * float(line[2])
