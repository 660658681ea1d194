// The four calls of a round trip of 64 bytes on one thread, so that a profiler can count them:
// every poll finds what it looks for. Prints the least time of a trip, too, which needs a quiet
// core and says nothing of two. Callgrind of valgrind 3.19 does not know pidfd_open(): it needs a
// program in which syscall() answers that one with any descriptor.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rows.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::bench {
namespace {

using namespace push_pull;

constexpr std::size_t bytes = 64;

class Trips {
 public:
  explicit Trips(bool prepared) {
    NodeOptions options;
    options.job.workers = 1;
    options.transport = Transport::shared_memory;
    options.spin = std::chrono::seconds(1);
    options.deadline = Deadline::after(std::chrono::seconds(60));
    scheduler_ = std::make_unique<Scheduler>(options);
    options.job.port = scheduler_->port();
    auto server =
        std::async(std::launch::async, [options] { return std::make_unique<Server>(options); });
    worker_ = std::make_unique<Worker>(options);
    server_ = server.get();
    push_ = {1, {there_.data(), Dtype::uint8, shape_, strides_}};
    pull_ = {2, {back_.data(), Dtype::uint8, shape_, strides_}};
    if (prepared) prepared_ = worker_->prepare({&push_, 1}, {&pull_, 1});
  }

  [[gnu::noinline]] void round_trips(int count) {
    for (int i = 0; i < count; ++i) round_trip();
  }

 private:
  void round_trip() {
    const Handler handler = prepared_ ? worker_->push_pull(*prepared_, until_)
                                      : worker_->push_pull({&push_, 1}, {&pull_, 1}, until_);
    server_->get_batch(batch_, {}, until_);
    server_->respond(batch_[0].handler, {&batch_[0].tensors[0].tensor, 1});
    worker_->wait(handler, until_);
  }

  // Of all round trips together, under a profiler, too.
  const Deadline until_ = Deadline::after(std::chrono::minutes(30));
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Server> server_;
  std::vector<std::byte> there_ = std::vector<std::byte>(bytes, std::byte{1});
  std::vector<std::byte> back_ = std::vector<std::byte>(bytes);
  std::vector<std::int64_t> shape_{static_cast<std::int64_t>(bytes)};
  std::vector<std::int64_t> strides_{1};
  Item push_;
  Item pull_;
  std::optional<PreparedRequest> prepared_;
  std::vector<Request> batch_;
};

int run(int argc, char** argv) {
  const bool prepared = argc > 1 && std::string_view(argv[1]) == "prepared";
  const int count = argc > 2 ? std::stoi(argv[2]) : 500;
  Trips trips(prepared);
  double least = 1e9;
  for (int round = 0; round < 60; ++round) {
    const TimePoint start = now();
    trips.round_trips(count);
    least = std::min(least, seconds_since(start) / count * 1e9);
  }
  fmt::print("{} trips of {} bytes{}: at least {:.0f} ns each\n", 60 * count, bytes,
             prepared ? ", prepared" : "", least);
  return 0;
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::run(argc, argv); }
