#include "base/mutex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tensorbus {
namespace {

struct Pair {
  ProcessMutex mutex;
  int left GUARDED_BY(mutex) = 0;
  int right GUARDED_BY(mutex) = 0;
};

// Of the process, as the mutexes in them are.
Pair& first() {
  static Pair& only = *new Pair;
  return only;
}
Pair& second() {
  static Pair& only = *new Pair;
  return only;
}

void change(Pair& pair) REQUIRES(pair.mutex) {
  ++pair.left;
  std::this_thread::yield();
  ++pair.right;
}

bool is_whole(Pair& pair) {
  const Lock lock(pair.mutex);
  return pair.left == pair.right;
}

// Threads that hold a pair, and the other one within, most of the time.
class Holders {
 public:
  Holders() {
    threads_.emplace_back([this] { hold(first(), second()); });
    threads_.emplace_back([this] { hold(second()); });
  }
  ~Holders() {
    stop_ = true;
    for (std::thread& each : threads_) each.join();
  }
  Holders(const Holders&) = delete;
  Holders& operator=(const Holders&) = delete;

 private:
  void hold(Pair& outer, Pair& inner) {
    while (!stop_) {
      const Lock lock(outer.mutex);
      change(outer);
      const Lock within(inner.mutex);
      change(inner);
    }
  }
  void hold(Pair& only) {
    while (!stop_) {
      const Lock lock(only.mutex);
      change(only);
    }
  }

  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

// What a child that must not hang makes of both; it calls nothing but this.
int status_of_a_child() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(is_whole(first()) && is_whole(second()) ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(ProcessMutex, IsFreeInAChildAndWhatItGuardsIsWhole) {
  const Holders holders;
  for (int forks = 0; forks < 200; ++forks) ASSERT_EQ(status_of_a_child(), 0);
}

TEST(ProcessMutex, IsFreeInTheParentAfterAFork) {
  ASSERT_EQ(status_of_a_child(), 0);
  EXPECT_TRUE(is_whole(first()));
  ASSERT_EQ(status_of_a_child(), 0) << "a second fork takes them again";
}

}  // namespace
}  // namespace tensorbus
