// Limits of the system that are reached: an error that says which, never a signal.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>

#include "base/clock.h"
#include "fabric/conformance/party.h"
#include "fabric/core/pool.h"
#include "fabric/shm/fabric.h"
#include "os/io/memory.h"
#include "os/testing/quiet_fork.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

void limit(int resource, rlim_t value) {
  rlimit set{value, RLIM_INFINITY};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &set);
  set.rlim_cur = value;
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &set) != 0) {
    throw Error(Code::failed, "setrlimit");
  }
}

// Room for this much more than there is now: the sanitizers have terabytes already.
void limit_address_space(std::size_t more) {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  limit(RLIMIT_AS, pages * os::page_size() + more);
}

bool says(const Status& status, const char* what) {
  if (status.message.find(what) != std::string::npos) return true;
  std::fprintf(stderr, "\"%s\" does not say \"%s\"\n", status.message.c_str(), what);
  return false;
}

template <typename Call>
Status failure_of(Call call) {
  try {
    call();
  } catch (...) {
    return current_exception_status();
  }
  return {Code::failed, "nothing failed"};
}

TEST(ShmLimitsTest, APoolBeyondTheAddressSpaceIsAnError) {
  EXPECT_TRUE(os::holds_in_child([] {
    Pool pool(PoolOptions{mebibyte});
    limit_address_space(64 * mebibyte);
    return says(failure_of([&] { pool.allocate(200 * mebibyte); }), "ulimit -v") &&
           pool.allocate(mebibyte) != nullptr;
  }));
}

TEST(ShmLimitsTest, APoolBeyondTheSizeOfFilesIsAnErrorAndNoSignal) {
  EXPECT_TRUE(os::holds_in_child([] {
    Pool pool(PoolOptions{mebibyte});
    limit(RLIMIT_FSIZE, 2 * mebibyte);
    return says(failure_of([&] { pool.allocate(3 * mebibyte); }), "ulimit -f") &&
           pool.allocate(mebibyte) != nullptr;
  }));
}

// An owner and a reader in one process, which may have one of its limits lowered.
class Pair {
 public:
  Pair() {
    memory_ = pool_->allocate(bytes);
    const TensorView view{memory_.get(), Dtype::int8, shape_, strides_};
    region_ = owner_->expose(std::span(&view, 1));
  }

  // The end of the attempt to connect, or ok.
  Status connect() {
    reader_.losses.clear();
    const auto peer = reader_->connect(owner_->address(), "secret", Deadline::never());
    until([&] { return peer->up() || !reader_.losses.empty(); });
    peer_ = peer;
    return reader_.losses.empty() ? Status{} : reader_.losses.front().reason;
  }
  Status attach() {
    reader_.completions.clear();
    reader_->attach(*peer_, region_->number(), OpId{1}, Deadline::never());
    until([&] { return reader_.completion(OpId{1}) != nullptr; });
    return reader_.completion(OpId{1})->status;
  }

 private:
  template <typename Condition>
  void until(Condition holds) {
    const Deadline patience = Deadline::after(std::chrono::seconds(30));
    while (!holds()) {
      if (patience.expired()) throw Error(Code::timeout, "nothing happens");
      owner_.poll();
      reader_.poll();
    }
  }

  static constexpr std::size_t bytes = 100 * mebibyte;
  const std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
  Party owner_{make_shm_fabric({"owner", "secret", pool_})};
  Party reader_{make_shm_fabric({"reader", "", nullptr})};
  std::shared_ptr<std::byte> memory_;
  const Shape shape_{bytes};
  const Shape strides_{1};
  std::unique_ptr<Region> region_;
  std::shared_ptr<Peer> peer_;
};

TEST(ShmLimitsTest, AReaderWithoutRoomForTheMemoryIsTold) {
  EXPECT_TRUE(os::holds_in_child([] {
    Pair pair;
    if (!pair.connect().ok()) return false;
    limit_address_space(mebibyte / 2);
    const Status refused = pair.attach();
    limit(RLIMIT_AS, RLIM_INFINITY);
    return says(refused, "ulimit -v") && pair.connect().ok() && pair.attach().ok();
  }));
}

}  // namespace
}  // namespace tensorbus::fabric
