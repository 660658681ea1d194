"""The checks of layers and points themselves: they pass on this tree and fail on a breach."""

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
        ("src/base/x.cc", '#include "store/engine/engine.h"\n', 'may not use "store/engine"'),
        ("src/store/engine/x.cc", '#include "store/server/service.h"\n', '"store/server"'),
        ("src/bus/client/x.cc", '#include "bus/agent/agent.h"\n', 'may not use "bus/agent"'),
        ("src/bus/round/x.cc", '#include "fabric/memory/fabric.h"\n', '"fabric/memory"'),
        ("src/plan/x.cc", '#include "copy/cast.h"\n', 'may not use "copy"'),
        ("src/tensor/x.h", '#include "tensorbus/store.h"\n', 'may not use "store"'),
        ("src/bus/client/x.h", "std::mutex mutex_;\n", "a mutex that clang does not know"),
        ("src/store/engine/x.cc", "auto t = std::chrono::steady_clock::now();\n", "reads a clock"),
        ("src/os/io/x.cc", 'auto v = std::getenv("X");\n', "reads the environment"),
        ("src/store/server/x.cc", '#include "base/interrupt.h"\n', "asks for Ctrl-C"),
        ("src/drawer/x.cc", "\n", "no row in the table of rooms"),
        ("src/bus/agent/x.cc", "void f() { static ProcessMutex late; }\n", "made at load"),
        ("include/tensorbus/new.h", "\n", "no row in the table of rooms"),
    ],
)
def test_a_breach_is_named(tree, path, text, complaint):
    problems = tree(path, text)
    assert len(problems) == 1
    assert complaint in problems[0]
    assert path in problems[0]


def test_comments_and_allowed_uses_are_no_breach(tree):
    assert (
        tree("src/store/etcd/x.cc", '#include "os/io/fd.h"\n// getenv, steady_clock::now\n') == []
    )
    assert tree("src/store/etcd/x_test.cc", '#include "base/interrupt.h"\n') == []
    assert tree("src/bus/agent/x_test.cc", '#include "fabric/memory/fabric.h"\n') == []
    assert tree("src/base/clock.cc", "std::chrono::steady_clock::now();\n") == []


def test_a_room_that_is_too_full_is_named(tmp_path, monkeypatch):
    module = load("check_layers")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    room = tmp_path / "src" / "plan"
    room.mkdir(parents=True)
    for number in range(module.MOST_FILES + 1):
        (room / f"x{number}.cc").touch()
    assert module.full_rooms() == ["src/plan: 26 files; a room has at most 25"]


def test_tests_and_specification_of_this_tree_have_the_same_points():
    assert load("check_points").main() == 0


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("- **K5** 5.\n- **K1** One.\n- **K2** Two.\n- **K3.1** Three, as in **K4**.\n", None),
        ("- **K5** 5.\n- **K1** One.\n- **K2** Two.\n", "src/a_test.cc names the point K3.1"),
        ("- **K5** 5.\n- **K1** One.\n- **K3.1** Three.\n", "tests/test_a.py names the point K2"),
        ("- **K1** One.\n- **K2** 2.\n- **K3.1** Three.\n", "bench/a.py names the point K5"),
        (
            "- **K5** 5.\n- **K1** 1.\n- **K2** 2.\n- **K3.1** 3.\n- **K4** 4.\n",
            "no test or benchmark names the point K4",
        ),
        (
            "- **K5** 5.\n- **K1** 1.\n- **K2** 2.\n- **K3.1** 3.\n- **K1** 1.\n",
            "K1 is defined twice",
        ),
    ],
)
def test_a_point_is_defined_once_and_named(tmp_path, monkeypatch, capsys, page, complaint):
    module = load("check_points")
    files = {
        "docs/specification/store.md": page,
        "tests/test_a.py": "@pytest.mark." + 'proves("K1", "K2")\n',
        "src/a_test.cc": "// proves: K3.1\nTEST(A, B) {}\n",
        "bench/a.py": "# proves: K5\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    assert module.main() == (0 if complaint is None else 1)
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == (0 if complaint is None else 1)
    assert complaint is None or complaint in errors[0]
