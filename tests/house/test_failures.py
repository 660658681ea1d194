"""The check of docs/failure.md: it passes on this tree and names what a row lacks."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("check_failures", ROOT / "tools/check_failures.py")
check_failures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_failures)


def test_every_failure_names_tests_that_exist():
    assert check_failures.main() == 0


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| cut | link | `E` | 5 s |", "4 cells"),
        ("| cut | link | `E` | | `test_failures.py` |", 'nothing under "after"'),
        ("| cut | link | `E` | 5 s | |", 'nothing under "test"'),
        ("| cut | link | `E` | 5 s | the usual ones |", "names no test"),
        ("| cut | link | `E` | 5 s | `test_nowhere.py` |", "no test_nowhere.py"),
        ("| cut | link | `E` | 5 s | `test_failures.py::test_x` |", "no test_failures.py::test_x"),
        ("| cut | link | `E` | 5 s | `test_failures.py`, `::test_x` |", "no ::test_x"),
        ("| cut | link | `E` | 5 s | `NoSuchTestAnywhere` |", "no NoSuchTestAnywhere"),
        ("| cut | link | `E` | 5 s | `tests/nowhere` |", "no tests/nowhere"),
    ],
)
def test_what_a_row_lacks_is_named(row, complaint):
    problems = check_failures.problems_of(f"| a |\n|---|\n{row}\n", check_failures.Tests())
    assert problems[-1].startswith("line 3")
    assert complaint in problems[-1]


def test_good_rows_are_quiet():
    name = "test_good_rows_are_quiet"
    row = f"| cut | link | `E` | 5 s | `test_failures.py::{name}`, `::{name}`, `fuzz_test.cc` |"
    assert check_failures.problems_of(row, check_failures.Tests()) == []
