"""The check of locks itself: it finds what is touched without its lock, and nothing else."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("check_locks", ROOT / "tools/check_locks.py")
check_locks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_locks)

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
    assert check_locks.complaints(ACCOUNT % body) == ""


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
    assert "requires holding mutex 'mutex_'" in check_locks.complaints(ACCOUNT % body)


def test_sources_are_found_through_their_headers():
    names = {path.relative_to(ROOT).as_posix() for path in check_locks.sources()}
    assert "src/fabric/core/pool.cc" in names, "reads the header itself"
    assert "src/store/native/remote_watch.cc" in names, "through that of another class"
    assert "src/plan/plan.cc" not in names
