"""The layer check itself: it passes on this tree and fails on a breach."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path, monkeypatch):
    module = load("check_layers")
    monkeypatch.setattr(module, "ROOT", tmp_path)

    def check(path: str, text: str) -> list[str]:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return module.problems_of(file)

    return check


def test_this_tree_keeps_the_table():
    assert load("check_layers").main() == 0


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("src/base/x.cc", '#include "store/engine.h"\n', 'may not use "store"'),
        ("src/plan/x.cc", '#include "copy/cast.h"\n', 'may not use "copy"'),
        ("src/tensor/x.h", '#include "tensorbus/store.h"\n', 'may not use "store"'),
        ("src/store/x.cc", "auto t = std::chrono::steady_clock::now();\n", "reads a clock"),
        ("src/os/x.cc", 'auto v = std::getenv("X");\n', "reads the environment"),
        ("src/store/x.cc", '#include "base/interrupt.h"\n', "asks for Ctrl-C"),
        ("src/drawer/x.cc", "\n", "no row in the layer table"),
        ("include/tensorbus/new.h", "\n", "no row in the layer table"),
    ],
)
def test_a_breach_is_named(tree, path, text, complaint):
    problems = tree(path, text)
    assert len(problems) == 1
    assert complaint in problems[0]
    assert path in problems[0]


def test_comments_and_allowed_uses_are_no_breach(tree):
    assert tree("src/store/x.cc", '#include "os/fd.h"\n// getenv, steady_clock::now\n') == []
    assert tree("src/store/x_test.cc", '#include "base/interrupt.h"\n') == []
    assert tree("src/base/clock.cc", "std::chrono::steady_clock::now();\n") == []


def test_a_point_without_a_test_is_missed(tmp_path, monkeypatch, capsys):
    module = load("check_points")
    (tmp_path / "tests").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("@pytest.mark." + 'proves("K1", "K2")\n')
    (tmp_path / "src" / "a_test.cc").write_text("// proves: K3\nTEST(A, B) {}\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "FINISHED", {"store": ["K1", "K2", "K3"]})
    assert module.main() == 0
    monkeypatch.setattr(module, "FINISHED", {"store": ["K1", "K4"]})
    assert module.main() == 1
    assert "K4" in capsys.readouterr().err
