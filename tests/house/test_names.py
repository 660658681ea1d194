"""The check of names itself: it passes on this tree and fails when a word gets a second meaning."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def names(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import check_names

    yield check_names
    for module in ("check_names", "check_layers"):
        sys.modules.pop(module, None)


@pytest.fixture
def check(names, tmp_path, monkeypatch):
    monkeypatch.setattr(names.check_layers, "ROOT", tmp_path)
    monkeypatch.setattr(names, "SHARED", {"Hello": "the first message of each protocol"})

    def problems(files: dict[str, str]) -> list[str]:
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return names.problems()

    return problems


def header(space: str, text: str) -> str:
    return f"#pragma once\n\nnamespace tensorbus::{space} {{\n\n{text}\n\n}}\n"


def test_this_tree_has_one_word_for_one_thing(names):
    assert names.main() == 0


@pytest.mark.parametrize("again", ["class Box {\n};", "enum class Box { a };", "using Box = int;"])
def test_a_second_meaning_is_named(check, again):
    files = {
        "src/plan/a.h": header("plan", "struct Box {\n  int size = 0;\n};"),
        "src/store/common/b.h": header("store", again),
    }
    assert check(files) == ["Box names two things: src/plan/a.h, src/store/common/b.h"]


def test_words_that_meant_too_much_mean_one_thing_inside_of_classes_and_tests_too(check):
    files = {
        "src/bus/match/pair.h": header("bus", "struct Side {\n};"),
        "src/copy/a.cc": "class Copies {\n  struct Side {\n  };\n};\n",
        "src/copy/a_test.cc": "namespace {\nusing Side = int;\n}\n",
    }
    rest = ": Side is what src/bus/match/pair.h says; find another word"
    assert check(files) == ["src/copy/a.cc" + rest, "src/copy/a_test.cc" + rest]


def test_declarations_other_namespaces_and_what_is_listed_are_no_second_meaning(check):
    files = {
        "src/plan/a.h": header("plan", "struct Box {\n};\nstruct Hello {\n};\nstruct Side;"),
        "src/store/common/b.h": header("store", "struct Box;\nstruct Hello {\n};\n// struct Box {"),
        "src/fabric/ucx/c.h": header("fabric::ucx", "struct Box {\n};"),
        "src/bus/match/d.h": header("bus", "class Pair {\n  struct Box {\n  };\n};"),
        "src/bus/match/d.cc": "struct Link::Impl {\n};\n",
    }
    assert check(files) == []


def test_a_list_that_says_too_much_is_named(check):
    (problem,) = check({"src/plan/a.h": header("plan", "struct Hello {\n};")})
    assert problem.startswith("Hello names one thing")
