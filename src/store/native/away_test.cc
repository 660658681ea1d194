// What a client says of a server that stays away, by a clock that moves only when told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/native/request_store.h"
#include "tensorbus/log.h"

namespace tensorbus::store {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

class AtomicClock final : public Clock {
 public:
  TimePoint now() const noexcept override { return TimePoint(Duration(time_)); }
  void advance(Duration time) { time_ += time.count(); }

 private:
  std::atomic<Duration::rep> time_{0};
};

// Grants leases, and then is away.
class AwayStore final : public RequestStore {
 public:
  explicit AwayStore(const Clock& clock) { telling_clock_ = &clock; }
  ~AwayStore() override { close(false); }

  std::string url() const override { return "tb://away"; }
  std::unique_ptr<Watch> watch(const std::string&, bool, Deadline) override { return nullptr; }
  void close(bool) noexcept override {
    end_leases(false);
    join_keep_alive();
  }
  // Returns when renewals have failed that began later.
  void fail_some_more() const {
    for (const int before = failed_; failed_ < before + 3;) std::this_thread::sleep_for(1ms);
  }

 private:
  std::string call(Op op, const std::string&, Deadline, Cancellation*) override {
    if (op == Op::grant) return "";
    ++failed_;
    throw Error(Code::unreachable, "nobody answers");
  }
  std::atomic<int> failed_ = 0;
};

class AwayTest : public testing::Test {
 protected:
  AwayTest() {
    log::set_sink([this](log::Level level, std::string_view line) {
      const std::lock_guard lock(mutex_);
      if (level == log::Level::warn) lines_.emplace_back(line);
    });
  }
  ~AwayTest() override { log::set_sink({}); }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

  AtomicClock clock_;

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// proves: L3.3
TEST_F(AwayTest, IsToldOnceAMinuteWithWhatItMeans) {
  AwayStore store(clock_);
  const auto one = store.lease(100ms, {}, Deadline::never());
  const auto other = store.lease(100ms, {}, Deadline::never());
  store.fail_some_more();
  EXPECT_THAT(lines(), SizeIs(1)) << "of two leases";
  clock_.advance(59s);
  store.fail_some_more();
  EXPECT_THAT(lines(), SizeIs(1));
  clock_.advance(1s);
  store.fail_some_more();
  EXPECT_THAT(lines(), SizeIs(2));
  EXPECT_THAT(lines(), Each(AllOf(HasSubstr("nobody answers"), HasSubstr("new ranks cannot join"),
                                  HasSubstr("all else goes on"))));
}

}  // namespace
}  // namespace tensorbus::store
