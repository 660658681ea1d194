// While both sides are there and at work, a round trip allocates nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "push_pull/testing/cluster.h"

namespace {

// By the threads that make and answer requests; leases are renewed by others.
thread_local bool counting = false;
std::atomic<std::uint64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (counting) allocations.fetch_add(1);
  void* const memory =
      std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Of the whole program; the other forms come here.
void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace tensorbus::push_pull {
namespace {

// proves: P7
TEST(PushPullAllocationTest, TenThousandRoundTripsAllocateNothing) {
  NodeOptions options;
  options.transport = Transport::shared_memory;
  Cluster cluster(1, 1, options);
  allocations = 0;
  constexpr int warm_up = 2'000;
  constexpr int measured = 10'000;
  std::jthread server([&] {
    std::vector<Request> batch;
    for (int i = 0; i < warm_up + measured; ++i) {
      counting = i >= warm_up;
      cluster.server(0).get_batch(batch, {}, soon());
      cluster.server(0).respond(batch[0].handler, {&batch[0].tensors[0].tensor, 1});
    }
    counting = false;
  });
  Worker& worker = cluster.worker(0);
  const auto pooled = worker.allocate(14 * 1024);
  Tensor small(Dtype::uint8, {64});
  Tensor large(Dtype::uint8, {14 * 1024});
  Tensor small_back(Dtype::uint8, {64});
  Tensor large_back(Dtype::uint8, {14 * 1024});
  large_back.move_to(pooled.get());
  const auto round_trip = [&](int i) {
    const Item push = i % 2 == 0 ? small.item(i % 5) : large.item(i % 5);
    const Item pull = i % 2 == 0 ? small_back.item(0) : large_back.item(0);
    push.tensor.data[0] = static_cast<std::byte>(i);
    worker.wait(worker.push_pull({&push, 1}, {&pull, 1}, soon()), soon());
    ASSERT_EQ(pull.tensor.data[0], static_cast<std::byte>(i));
  };
  for (int i = 0; i < warm_up; ++i) round_trip(i);
  counting = true;
  for (int i = 0; i < measured; ++i) round_trip(i);
  counting = false;
  EXPECT_EQ(allocations.load(), 0U);
}

}  // namespace
}  // namespace tensorbus::push_pull
