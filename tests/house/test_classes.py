"""The check of classes itself: it passes on this tree, and counts what a reader would count."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def classes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setattr(sys, "argv", ["check_classes.py"])
    import check_classes

    yield check_classes
    sys.modules.pop("check_classes", None)


def test_no_class_of_this_tree_is_too_large_without_a_reason(classes):
    assert classes.main() == 0
    assert all(len(reason) > 40 for reason in classes.ALLOWED.values())


def sizes(classes, code: str) -> dict[str, tuple[int, int]]:
    found = classes.sizes_in(code, Path("x.h"))
    return {each.name: (each.members, each.methods) for each in found}


def test_members_and_methods_are_counted(classes):
    code = """
    #define NOISE class Noise {
    // class Comment { int a_; };
    class Kept;
    enum class Colour { red, green };
    class CHECKED(capability("mutex")) Task final : public Base, private Other<Task> {
     public:
      using Done = std::function<void(int)>;
      static constexpr int most = 3;
      explicit Task(int first) : first_(first), texts_{"; }"} {}
      ~Task();
      Task(const Task&) = delete;
      Task& operator=(const Task&) = delete;
      virtual void run() = 0;
      int first() const noexcept { return first_ < 3 ? first_ : 0; }
      template <typename Each>
      void each(Each each) REQUIRES(mutex_) {
        for (;;) { each(); }
      }
      std::map<int, std::vector<int>> all(std::function<void()> then = {}) const;
      bool operator<(const Task&) const = default;
      friend bool operator==(const Task&, const Task&) = default;
      struct Part {
        int a = 0, b = 0;
        std::string text{};
      };

     private:
      int first_;
      std::vector<std::string> texts_;
      std::function<void(int, int)> done_ = [](int, int) { return; };
      std::map<int, Part> parts_ GUARDED_BY(mutex_){};
      mutable Mutex mutex_;
    };
    """
    # run, first, each, all, operator<
    assert sizes(classes, code) == {"Task": (5, 5), "Part": (3, 0)}


def large(members: int, methods: int) -> str:
    lines = [f"int member{i}_ = 0;" for i in range(members)]
    lines += [f"void method{i}() {{}}" for i in range(methods)]
    return "class Big { " + "\n".join(lines) + " };"


@pytest.mark.parametrize(
    ("named", "members", "methods", "found"),
    [
        (False, 21, 31, "src/x/big.h: Big has 21 members and 31 methods; divide it"),
        (False, 20, 31, ""),
        (False, 21, 30, ""),
        (True, 20, 31, "src/x/big.h: Big has 20 members and 31 methods; divide it"),
        (True, 21, 30, "src/x/big.h: Big has 21 members and 30 methods; divide it"),
        (True, 20, 30, ""),
    ],
)
def test_a_class_that_is_too_large_is_named(
    classes, named, members, methods, found, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(classes, "ROOT", tmp_path)
    monkeypatch.setattr(classes, "ALLOWED", {})
    monkeypatch.setattr(classes, "NAMED", {"src/x/big.h": "Big"} if named else {})
    (tmp_path / "src/x").mkdir(parents=True)
    (tmp_path / "src/x/big.h").write_text(large(members, methods))
    assert classes.main() == bool(found)
    assert capsys.readouterr().err == (f"check_classes: {found}\n" if found else "")


def test_a_reason_that_is_needed_no_more_is_named(classes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(classes, "ROOT", tmp_path)
    monkeypatch.setattr(classes, "ALLOWED", {"Big": "for a reason"})
    assert classes.main() == 1
    assert "Big is no longer too large" in capsys.readouterr().err


def test_a_named_class_that_has_moved_is_named(classes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(classes, "ROOT", tmp_path)
    monkeypatch.setattr(classes, "ALLOWED", {})
    monkeypatch.setattr(classes, "NAMED", {"src/x/big.h": "Big"})
    assert classes.main() == 1
    assert "src/x/big.h has no Big" in capsys.readouterr().err
