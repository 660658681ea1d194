"""The check of duplicates itself: it passes on this tree and finds a pair that was put there."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BODY = "\n".join(f"  total += weights[{at}] * values[{at}];" for at in range(12))
LAST = "  return total;"


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import check_duplicates

    yield check_duplicates
    sys.modules.pop("check_duplicates", None)


@pytest.fixture
def check(checked, tmp_path, monkeypatch):
    monkeypatch.setattr(checked, "ROOT", tmp_path)

    def found(one: str, other: str) -> list[str]:
        for name, text in {"src/one.cc": one, "src/deep/other.h": other}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return checked.duplicates()

    return found


def test_this_tree_has_no_duplicates_without_a_reason(checked):
    assert checked.duplicates() == []
    assert all(len(reason) > 40 for reason in checked.ALLOWED.values())


def test_a_pair_is_found_whatever_its_comments_includes_and_indentation(check):
    one = f'#include "one.h"\n\nint one() {{\n{BODY}\n{LAST}\n}}\n'
    other = BODY.replace("  total", "\n    // Twice.\n    total") + f"\n#include <vector>\n{LAST}\n"
    (said,) = check(one, f"int other() {{\n{other}}}\n")
    assert said.startswith("src/one.cc:4 repeats src/deep/other.h:4; ")


def test_twelve_lines_are_not_too_many(check):
    assert check(f"int one() {{\n{BODY}\n}}\n", f"int other() {{\n{BODY}\n{LAST}\n}}\n") == []


def test_a_pair_with_a_reason_may_stay(check, checked, monkeypatch):
    text = f"{BODY}\n{LAST}\n"
    assert len(check(text, text)) == 1
    monkeypatch.setattr(checked, "ALLOWED", {LAST.strip(): "for a reason"})
    assert check(text, text) == []
