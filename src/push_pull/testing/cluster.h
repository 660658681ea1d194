// A whole job in one process, for tests: every node is as it would be in a process of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/testing/calls.h"
#include "fabric/ucx/ucx.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::push_pull {

class Cluster {
 public:
  explicit Cluster(int workers, int servers, NodeOptions options = {}) {
    options.job.workers = workers;
    options.job.servers = servers;
    options.deadline = soon();
    scheduler_ = std::make_unique<Scheduler>(options);
    options.job.port = scheduler_->port();
    std::vector<std::future<std::unique_ptr<Worker>>> new_workers;
    std::vector<std::future<std::unique_ptr<Server>>> new_servers;
    for (options.rank = 0; options.rank < workers * options.job.group_size; ++options.rank) {
      new_workers.push_back(
          std::async(std::launch::async, [options] { return std::make_unique<Worker>(options); }));
    }
    for (options.rank = 0; options.rank < servers * options.job.group_size; ++options.rank) {
      new_servers.push_back(
          std::async(std::launch::async, [options] { return std::make_unique<Server>(options); }));
    }
    scheduler_->wait_for_all(soon());
    for (auto& each : new_workers) workers_.push_back(each.get());
    for (auto& each : new_servers) servers_.push_back(each.get());
  }

  Worker& worker(std::size_t rank) { return *workers_[rank]; }
  Server& server(std::size_t rank) { return *servers_[rank]; }
  Scheduler& scheduler() { return *scheduler_; }
  void kill_worker(std::size_t rank) { workers_[rank].reset(); }
  void kill_server(std::size_t rank) { servers_[rank].reset(); }

 private:
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Server>> servers_;
};

// A tensor with its memory.
class Tensor {
 public:
  Tensor(Dtype dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides = {})
      : dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)) {
    if (strides_.empty()) {
      strides_.resize(shape_.size());
      std::int64_t stride = 1;
      for (std::size_t dim = shape_.size(); dim-- > 0; stride *= shape_[dim]) {
        strides_[dim] = stride;
      }
    }
    std::int64_t last = 0;
    for (std::size_t dim = 0; dim < shape_.size(); ++dim) {
      last += std::max<std::int64_t>(shape_[dim] - 1, 0) * strides_[dim];
    }
    memory_.resize(static_cast<std::size_t>(last + 1) * item_bytes(dtype_));
    data_ = memory_.data();
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  // With gaps, transposed, or dense.
  static std::unique_ptr<Tensor> strided(Dtype dtype, const std::vector<std::int64_t>& shape,
                                         std::mt19937& random) {
    std::vector<std::size_t> order(shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (random() % 3 == 0) std::ranges::shuffle(order, random);
    std::vector<std::int64_t> strides(shape.size());
    std::int64_t stride = random() % 4 == 0 ? 2 : 1;
    for (const std::size_t dim : order) {
      const std::size_t from_end = shape.size() - 1 - dim;
      strides[from_end] = stride;
      stride *= std::max<std::int64_t>(shape[from_end], 1) + (random() % 4 == 0 ? 1 : 0);
    }
    return std::make_unique<Tensor>(dtype, shape, strides);
  }

  // Something that depends on place and seed.
  void fill(int seed) {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      data_[i] = static_cast<std::byte>(static_cast<std::size_t>(seed) + i / 3);
    }
  }

  TensorView view() { return {data_, dtype_, shape_, strides_}; }
  Item item(std::int64_t key) { return {key, view()}; }
  // In memory of somebody else's.
  void move_to(std::byte* memory) { data_ = memory; }
  std::byte* data() { return data_; }

 private:
  Dtype dtype_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  std::vector<std::byte> memory_;
  std::byte* data_;
};

inline std::vector<Request> batch(Server& server, const std::vector<int>& workers = {}) {
  std::vector<Request> requests;
  server.get_batch(requests, workers, soon());
  return requests;
}

// Answers the next batch with what it brought, or with nothing.
inline void echo(Server& server) {
  for (const Request& request : batch(server)) {
    std::vector<TensorView> tensors;
    for (const Received& received : request.tensors) tensors.push_back(received.tensor);
    server.respond(request.handler, tensors);
  }
}
inline void echo_nothing(Server& server) {
  for (const Request& request : batch(server)) server.respond(request.handler, {});
}

// What a call ends with.
template <typename Call>
Status status_of(Call call) {
  try {
    call();
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

// On every transport that there is.
class TransportTest : public testing::TestWithParam<Transport> {
 protected:
  static NodeOptions options() {
    NodeOptions options;
    options.transport = GetParam();
    return options;
  }
  static bool shared() { return GetParam() == Transport::shared_memory; }
};
inline auto every_transport() {
  return testing::ValuesIn(fabric::has_ucx()
                               ? std::vector{Transport::shared_memory, Transport::network}
                               : std::vector{Transport::shared_memory});
}
inline std::string name_of(const testing::TestParamInfo<Transport>& each) {
  return each.param == Transport::network ? "network" : "shared_memory";
}

}  // namespace tensorbus::push_pull
