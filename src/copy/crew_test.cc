#include "copy/crew.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "os/testing/quiet_fork.h"
#include "tensorbus/deadline.h"

namespace tensorbus::copy {
namespace {

// Threads of this process that carry the crews' name.
std::size_t crew_threads() {
  std::size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
    if (name == "tensorbus copy") ++count;
  }
  return count;
}

// A thread that was joined is listed a moment longer.
bool crew_threads_go() {
  const Deadline patience = Deadline::after(std::chrono::seconds(60));
  while (crew_threads() > 0 && !patience.expired()) std::this_thread::yield();
  return crew_threads() == 0;
}

// All threads of a crew are at it.
void run_together(Crew& crew) {
  std::latch together(static_cast<std::ptrdiff_t>(crew.size()));
  crew.run(crew.size(), [&](std::size_t) { together.arrive_and_wait(); });
}

TEST(CrewTest, EveryPieceIsCarriedOutOnce) {
  for (std::size_t size = 1; size <= most_threads; ++size) {
    Crew crew(size);
    for (std::size_t count : {0, 1, 2, 3, 7, 8, 9, 100, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      crew.run(count, [&](std::size_t at) { ++calls[at]; });
      EXPECT_TRUE(std::ranges::all_of(calls, [](const auto& each) { return each == 1; }))
          << size << " threads, " << count << " pieces";
    }
  }
}

TEST(CrewTest, WhatThePiecesHaveWrittenIsSeenByTheCaller) {
  Crew crew(4);
  for (std::size_t run = 1; run <= 500; ++run) {
    std::vector<std::size_t> written(16);  // no atomics: the end of the run orders it
    crew.run(written.size(), [&](std::size_t at) { written[at] = run; });
    EXPECT_EQ(std::ranges::count(written, run), 16);
  }
}

TEST(CrewTest, SeveralThreadsWorkAtTheSameTime) {
  Crew crew(3);
  // Nobody passes before three have come.
  std::latch together(3);
  std::mutex mutex;
  std::set<std::thread::id> who;
  crew.run(3, [&](std::size_t) {
    together.arrive_and_wait();
    const std::scoped_lock lock(mutex);
    who.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(who.size(), 3u);
  EXPECT_TRUE(who.contains(std::this_thread::get_id()));
}

TEST(CrewTest, OneThreadIsTheCallersOwn) {
  Crew crew;
  std::vector<std::size_t> order;
  crew.run(5, [&](std::size_t at) { order.push_back(at); });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(crew_threads_go());
}

TEST(CrewTest, ThreadsHaveANameAndTakeNoSignals) {
  Crew crew(2);
  std::latch together(2);
  std::atomic<std::size_t> blocked = 0;
  const auto caller = std::this_thread::get_id();
  crew.run(2, [&](std::size_t) {
    together.arrive_and_wait();
    if (std::this_thread::get_id() == caller) return;
    sigset_t mask;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    blocked = ::sigismember(&mask, SIGINT) + ::sigismember(&mask, SIGCHLD);
  });
  EXPECT_EQ(blocked, 2u);
  EXPECT_GE(crew_threads(), 1u);
}

TEST(CrewTest, AnExceptionReachesTheCallerWhenNobodyIsAtAPieceAnyMore) {
  for (const std::size_t size : {1, 2, 8}) {
    Crew crew(size);
    std::atomic<int> inside = 0;
    const auto piece = [&](std::size_t at) {
      ++inside;
      if (at == 5) {
        --inside;
        throw std::runtime_error("piece 5");
      }
      --inside;
    };
    EXPECT_THROW(crew.run(100, piece), std::runtime_error);
    EXPECT_EQ(inside, 0);
    // And the crew goes on.
    std::atomic<int> calls = 0;
    crew.run(10, [&](std::size_t) { ++calls; });
    EXPECT_EQ(calls, 10);
  }
}

TEST(CrewTest, AfterAnExceptionNoOtherPieceBegins) {
  Crew crew(2);
  std::atomic<std::size_t> begun = 0;
  EXPECT_THROW(crew.run(100'000,
                        [&](std::size_t) {
                          ++begun;
                          throw std::runtime_error("every one");
                        }),
               std::runtime_error);
  EXPECT_LE(begun, 2u);
}

TEST(CrewTest, ACallerWhoFindsTheCrewAtWorkWorksAlone) {
  Crew crew(2);
  std::latch busy(2);
  std::latch may_end(1);
  std::thread other([&] {
    crew.run(2, [&](std::size_t) {
      busy.arrive_and_wait();
      may_end.wait();
    });
  });
  busy.wait();
  std::set<std::thread::id> who;
  crew.run(50, [&](std::size_t) { who.insert(std::this_thread::get_id()); });
  EXPECT_EQ(who, std::set{std::this_thread::get_id()});
  may_end.count_down();
  other.join();
}

TEST(CrewTest, ManyCallersShareACrew) {
  Crew crew(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int run = 0; run < 200; ++run) {
        std::vector<int> calls(9);
        crew.run(calls.size(), [&](std::size_t at) { ++calls[at]; });
        if (std::ranges::count(calls, 1) != 9) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CrewTest, AnotherSizeHoldsFromTheNextRunOn) {
  Crew crew(1);
  crew.resize(3);
  run_together(crew);
  crew.resize(1);
  std::set<std::thread::id> who;
  crew.run(50, [&](std::size_t) { who.insert(std::this_thread::get_id()); });
  EXPECT_EQ(who, std::set{std::this_thread::get_id()});
  crew.resize(0);
  EXPECT_EQ(crew.size(), 1u);
  crew.resize(1000);
  EXPECT_EQ(crew.size(), most_threads);
}

TEST(CrewTest, NoThreadIsLeftAfterTheEnd) {
  {
    Crew crew(8);
    run_together(crew);
    EXPECT_GE(crew_threads(), 7u);
    crew.dismiss();
    EXPECT_TRUE(crew_threads_go());
    run_together(crew);
  }
  EXPECT_TRUE(crew_threads_go());
}

// The threads do not come along: a child that waited for them would wait for ever.
TEST(CrewTest, InAForkedChildTheCallerWorksAlone) {
  auto crew = std::make_unique<Crew>(4);
  run_together(*crew);
  const pid_t child = os::quiet_fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int calls = 0;
    crew->run(10, [&](std::size_t) { ++calls; });
    crew->dismiss();
    crew.reset();
    ::_exit(calls == 10 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  std::atomic<int> calls = 0;
  crew->run(10, [&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 10);
}

}  // namespace
}  // namespace tensorbus::copy
