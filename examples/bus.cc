// Two trainers hold a matrix by rows, two servers want it by columns: in bfloat16, round after
// round.
//
// All four ranks run here, on threads, to keep it short; in real life each is a process of its own.
//
//   cmake --preset dev && cmake --build build/dev --target bus_example && build/dev/bin/bus_example

#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "tensorbus/bus.h"

namespace tb = tensorbus;

constexpr std::int64_t rows = 8;
constexpr std::int64_t columns = 6;
constexpr int rounds = 3;

tb::Deadline soon() { return tb::Deadline::after(std::chrono::seconds(30)); }

// Sends rows rank * 4 ... of a matrix whose elements are all the number of the round.
void train(tb::Rank rank) {
  tb::Bus bus("memory://example", {rank});
  bus.init_pair({"weights", "train", "serve", 2, {2}, {tb::Shard{0}}}, soon());
  std::vector<float> half(rows / 2 * columns);
  const tb::BusTensor tensor{half.data(), tb::Dtype::float32, {rows / 2, columns}, {}, "weights"};
  tb::BusBatch batch = bus.register_tensors("step", std::span(&tensor, 1), soon());
  for (int round = 1; round <= rounds; ++round) {
    half.assign(half.size(), static_cast<float>(round));
    batch.send(soon());
  }
}

// Receives three of the six columns, as bfloat16: the upper half of a float32.
void serve(tb::Rank rank) {
  tb::Bus bus("memory://example", {rank});
  bus.init_pair({"weights", "serve", "train", 2, {2}, {tb::Shard{1}}}, soon());
  std::vector<std::uint16_t> half(rows * columns / 2);
  const tb::BusTensor tensor{half.data(), tb::Dtype::bfloat16, {rows, columns / 2}, {}, "weights"};
  tb::BusBatch batch = bus.register_tensors("step", std::span(&tensor, 1), soon());
  for (int round = 1; round <= rounds; ++round) {
    const tb::TransferResult result = batch.recv(soon());
    const std::uint32_t bits = static_cast<std::uint32_t>(half.back()) << 16;
    float last = 0;
    std::memcpy(&last, &bits, sizeof last);
    std::printf("rank %d has round %d: its last element is %g\n", static_cast<int>(rank),
                static_cast<int>(result.round), static_cast<double>(last));
  }
}

int main() {
  // The store lives as long as somebody is connected to it.
  const auto store = tb::connect(tb::StoreUrl::parse("memory://example"));
  std::vector<std::jthread> ranks;
  ranks.emplace_back(train, 0);
  ranks.emplace_back(train, 1);
  ranks.emplace_back(serve, 2);
  ranks.emplace_back(serve, 3);
}
