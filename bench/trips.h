// Round trips of 64 bytes on one thread, which is worker and server in turn: what the code between
// them costs, without any waiting.
#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "tensorbus/push_pull.h"

namespace tensorbus::bench {

class Trips {
 public:
  static constexpr std::size_t bytes = 64;

  explicit Trips(bool prepared) {
    push_pull::NodeOptions options;
    options.job.workers = 1;
    options.transport = push_pull::Transport::shared_memory;
    options.spin = std::chrono::seconds(1);
    options.deadline = Deadline::after(std::chrono::seconds(60));
    scheduler_ = std::make_unique<push_pull::Scheduler>(options);
    options.job.port = scheduler_->port();
    auto server = std::async(std::launch::async,
                             [options] { return std::make_unique<push_pull::Server>(options); });
    worker_ = std::make_unique<push_pull::Worker>(options);
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
    const push_pull::Handler handler = prepared_
                                           ? worker_->push_pull(*prepared_, until_)
                                           : worker_->push_pull({&push_, 1}, {&pull_, 1}, until_);
    server_->get_batch(batch_, {}, until_);
    server_->respond(batch_[0].handler, {&batch_[0].tensors[0].tensor, 1});
    worker_->wait(handler, until_);
  }

  // Of all round trips together, under a profiler, too.
  const Deadline until_ = Deadline::after(std::chrono::minutes(30));
  std::unique_ptr<push_pull::Scheduler> scheduler_;
  std::unique_ptr<push_pull::Worker> worker_;
  std::unique_ptr<push_pull::Server> server_;
  std::vector<std::byte> there_ = std::vector<std::byte>(bytes, std::byte{1});
  std::vector<std::byte> back_ = std::vector<std::byte>(bytes);
  std::vector<std::int64_t> shape_{static_cast<std::int64_t>(bytes)};
  std::vector<std::int64_t> strides_{1};
  push_pull::Item push_;
  push_pull::Item pull_;
  std::optional<push_pull::PreparedRequest> prepared_;
  std::vector<push_pull::Request> batch_;
};

}  // namespace tensorbus::bench
