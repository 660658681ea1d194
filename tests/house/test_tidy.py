"""clang-tidy as it is set up here: it finds what is on the list, with the flags of the product."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def check_tidy(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("check_tidy", ROOT / "tools/check_tidy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CODE = """
#include <string>
#include <utility>

#include "tensorbus/deadline.h"

void keep(std::string text);
std::size_t size_of(std::string text);
std::size_t size_of(std::string text) {
  %s
}
"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("const std::size_t size = text.size(); keep(std::move(text)); return size;", ""),
        ("keep(std::move(text)); return text.size();", "bugprone-use-after-move"),
        (
            "std::size_t sum = 0; for (const std::string each : {text}) sum += each.size();"
            " return sum;",
            "performance-for-range-copy",
        ),
    ],
)
def test_what_is_on_the_list_is_found(check_tidy, tmp_path, body, found):
    file = tmp_path / "sizes.cc"
    file.write_text(CODE % body)
    complaints = check_tidy.complaints(file)
    assert found in complaints
    assert bool(complaints) == bool(found)
