// N + N ranks in this process that register a batch of 1,000 tensors, and what that costs them.
#pragma once

#include <fmt/core.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tensorbus/bus.h"
#include "tensorbus/store.h"

namespace tensorbus::bench {

// What the process has used so far, all its threads together.
struct Used {
  double cpu_seconds = 0;
  double switches = 0;  // of threads, whether they waited or were interrupted
};

inline Used used_by_now() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return {seconds(usage.ru_utime) + seconds(usage.ru_stime),
          static_cast<double>(usage.ru_nvcsw + usage.ru_nivcsw)};
}

// Of all connections of this process to the port, both ways.
inline double bytes_through(std::uint16_t port) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sin_family != AF_INET || ntohs(peer.sin_port) != port) continue;
    tcp_info info{};
    size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    bytes += info.tcpi_bytes_acked + info.tcpi_bytes_received;
  }
  return static_cast<double>(bytes);
}

class RegistrationCluster {
 public:
  static constexpr std::size_t tensors = 1000;

  // The first half of the ranks has Shard(0), the second Shard(target_dim).
  RegistrationCluster(std::int64_t ranks, int target_dim, Deadline deadline)
      : ranks_(ranks),
        target_dim_(target_dim),
        deadline_(deadline),
        memory_(static_cast<std::size_t>(rows * rows)) {
    StoreServerOptions options;
    options.port = 0;
    server_ = std::make_unique<StoreServer>(options);
    for (Rank rank = 0; rank < 2 * ranks; ++rank) {
      BusOptions own;
      own.rank = rank;
      own.copy_threads = 1;
      own.deadline = deadline_;
      buses_.push_back(std::make_unique<Bus>(server_->url(), own));
    }
  }

  void meet() {
    on_all([&](Rank rank) {
      PairSide side{"pair",
                    sends(rank) ? "train" : "infer",
                    sends(rank) ? "infer" : "train",
                    ranks_,
                    {ranks_},
                    {Shard{dim(rank)}}};
      bus(rank).init_pair(side, deadline_);
    });
  }

  void enlist() {
    batches_.resize(buses_.size());
    on_all([&](Rank rank) {
      const std::vector<BusTensor> local = tensors_of(rank);
      batches_[static_cast<std::size_t>(rank)] =
          std::make_unique<BusBatch>(bus(rank).register_tensors("batch", local, deadline_));
    });
  }

  double bytes() const { return bytes_through(server_->port()); }

 private:
  static constexpr std::int64_t rows = 512;  // and columns

  bool sends(Rank rank) const { return rank < ranks_; }
  std::int64_t dim(Rank rank) const { return sends(rank) ? 0 : target_dim_; }
  Bus& bus(Rank rank) { return *buses_[static_cast<std::size_t>(rank)]; }

  std::vector<BusTensor> tensors_of(Rank rank) {
    BusTensor tensor;
    tensor.data = memory_.data();
    tensor.dtype = Dtype::uint8;
    tensor.shape = dim(rank) == 0 ? Shape{rows / ranks_, rows} : Shape{rows, rows / ranks_};
    tensor.pair = "pair";
    std::vector<BusTensor> local(tensors, tensor);
    for (std::size_t at = 0; at < tensors; ++at) {
      local[at].name = fmt::format("model.layers.{}.mlp.up_proj.weight", at);
    }
    return local;
  }

  // Throws what the first that failed threw.
  void on_all(const std::function<void(Rank)>& call) {
    std::vector<std::future<void>> calls;
    for (Rank rank = 0; rank < 2 * ranks_; ++rank) {
      calls.push_back(std::async(std::launch::async, [&call, rank] { call(rank); }));
    }
    for (std::future<void>& each : calls) each.wait();
    for (std::future<void>& each : calls) each.get();
  }

  const std::int64_t ranks_;
  const int target_dim_;
  const Deadline deadline_;
  std::vector<std::byte> memory_;
  std::unique_ptr<StoreServer> server_;
  std::vector<std::unique_ptr<Bus>> buses_;
  std::vector<std::unique_ptr<BusBatch>> batches_;
};

}  // namespace tensorbus::bench
