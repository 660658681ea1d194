"""The check by clang itself: it finds what is touched without its lock, and what clang refuses."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("check_clang", ROOT / "tools/check_clang.py")
check_clang = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_clang)

ACCOUNT = """
#include "base/mutex.h"

class Account {
 public:
  void add(int amount) {
    %s
  }

 private:
  void change(int amount) REQUIRES(mutex_) { sum_ += amount; }

  tensorbus::Mutex mutex_;
  int sum_ GUARDED_BY(mutex_) = 0;
};
"""
LOCK = "tensorbus::Lock lock(mutex_);"


@pytest.mark.parametrize(
    "body",
    [
        f"const {LOCK} sum_ += amount;",
        f"const {LOCK} change(amount);",
        f"{LOCK} lock.unlock(); lock.lock(); sum_ += amount;",
        f"const {LOCK} const auto more = [&]() REQUIRES(mutex_) {{ sum_ += amount; }}; more();",
    ],
)
def test_with_the_lock_all_is_well(body):
    assert check_clang.complaints(ACCOUNT % body) == ""


@pytest.mark.parametrize(
    "body",
    [
        "sum_ += amount;",
        "change(amount);",
        f"{LOCK} lock.unlock(); sum_ += amount;",
        f"{{ const {LOCK} }} change(amount);",
        "const auto more = [&] { sum_ += amount; }; more();",
    ],
)
def test_a_missing_lock_is_found(body):
    assert "requires holding mutex 'mutex_'" in check_clang.complaints(ACCOUNT % body)


def test_what_only_clang_refuses_is_found():
    code = """
        #include <map>
        int sum(const std::map<int, int>& all) {
          int total = 0;
          for (const auto& [key, value] : all) total += [&value] { return value; }() + key;
          return total;
        }
        int sum(const std::map<int, int>& all);
    """
    assert "'value' in capture list does not name a variable" in check_clang.complaints(code)


def test_all_sources_of_the_product_are_read():
    names = {path.relative_to(ROOT).as_posix() for path in check_clang.sources()}
    assert {"src/fabric/core/pool.cc", "src/plan/plan.cc", "python/bindings/store.cc"} <= names
    assert "src/plan/plan_test.cc" not in names
