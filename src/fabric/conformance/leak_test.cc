// Connections and fabrics that come and go leave nothing behind.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/config.h"
#include "fabric/conformance/conformance.h"

namespace tensorbus::fabric {
namespace {

int rounds(int usually) { return config::variable("TENSORBUS_TEST_LONG") ? 1000 : usually; }

// What a process has of the system.
struct Holdings {
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t threads = 0;
  std::ptrdiff_t shared_files = 0;     // in /dev/shm
  std::ptrdiff_t shared_mappings = 0;  // of memfds

  bool within(const Holdings& other) const {
    return descriptors <= other.descriptors && threads <= other.threads &&
           shared_files <= other.shared_files && shared_mappings <= other.shared_mappings;
  }
};

std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

std::ptrdiff_t memfd_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") != std::string::npos) ++count;
  }
  return count;
}

Holdings holdings() {
  return {entries("/proc/self/fd"), entries("/proc/self/task"), entries("/dev/shm"),
          memfd_mappings()};
}

// After a while: UCX closes its sockets a little later.
void expect_no_more_than(const Holdings& before, const std::function<void()>& poll) {
  const Deadline patience = Deadline::after(std::chrono::seconds(5));
  while (!holdings().within(before) && !patience.expired()) poll();
  const Holdings after = holdings();
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.shared_files, before.shared_files);
  EXPECT_LE(after.shared_mappings, before.shared_mappings);
}

TEST_P(FabricTest, ConnectionsLeaveNothingBehind) {
  const TestTensor tensor = new_tensor(Dtype::int8, {100'000});
  const TestTensor target = new_tensor(Dtype::int8, {100'000});
  fill(tensor);
  const auto region = owner_->expose(views({tensor}));
  const auto once = [&] {
    const auto peer = connect();
    const Source source = attach(reader_, peer, *region);
    EXPECT_TRUE(read(reader_, whole(source, {target})).status.ok());
    reader_->disconnect(*peer);
    until([&] { return !reader_.losses.empty() && !owner_.losses.empty(); });
    accepted_.reset();
    for (Party* party : {&reader_, &owner_}) {
      party->completions.clear();
      party->ups.clear();
      party->losses.clear();
    }
  };
  for (int i = 0; i < 5; ++i) once();
  const Holdings before = holdings();
  for (int i = 0; i < rounds(60); ++i) once();
  expect_no_more_than(before, [&] { poll(); });
}

TEST_P(FabricTest, FabricsLeaveNothingBehind) {
  const TestTensor tensor = new_tensor(Dtype::int8, {1000});
  const TestTensor target = new_tensor(Dtype::int8, {1000});
  const auto once = [&] {
    Party other = make_("other", "x");
    others_ = {&other};
    const auto region = other->expose(views({tensor}));
    const Source source = attach(reader_, connect(reader_, other, "x"), *region);
    EXPECT_TRUE(read(reader_, whole(source, {target})).status.ok());
    accepted_.reset();
    others_.clear();
  };
  const auto lose_it = [&] {
    until([&] { return !reader_.losses.empty(); });
    reader_.completions.clear();
    reader_.ups.clear();
    reader_.losses.clear();
  };
  for (int i = 0; i < 3; ++i) {
    once();
    lose_it();
  }
  const Holdings before = holdings();
  for (int i = 0; i < rounds(20); ++i) {
    once();
    lose_it();
  }
  expect_no_more_than(before, [&] { poll(); });
}

}  // namespace
}  // namespace tensorbus::fabric
