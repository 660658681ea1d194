// The bus as C++ programs see it.
#include "tensorbus/bus.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>

#include "base/testing/calls.h"
#include "tensorbus/pool.h"

namespace tensorbus {
namespace {

constexpr std::int64_t float_number = 1000;
constexpr std::size_t float_bytes = float_number * sizeof(float);

BusOptions options_of(Rank rank, std::shared_ptr<fabric::Pool> pool) {
  BusOptions options;
  options.rank = rank;
  options.pool = std::move(pool);
  return options;
}

BusTensor tensor_at(std::byte* memory) {
  return {memory, Dtype::float32, {float_number}, {}, "pair"};
}

TEST(BusTest, UsesThePoolThatItIsGiven) {
  const auto keeps_it = connect(StoreUrl::parse("memory://bus_pool_test"));
  const auto pool = make_pool();
  const auto own = allocate(*pool, float_bytes);
  std::memset(own.get(), 7, float_bytes);
  const std::size_t before = use_of(*pool).lent_bytes;
  std::vector<std::byte> got(float_bytes);
  Bus sender("memory://bus_pool_test", options_of(0, pool));
  const auto of_the_bus = sender.allocate(float_bytes);
  EXPECT_GE(use_of(*pool).lent_bytes, before + float_bytes)
      << "what it allocates comes from elsewhere";
  std::thread receives([&] {
    Bus receiver("memory://bus_pool_test", options_of(1, nullptr));
    receiver.init_pair({"pair", "b", "a"}, soon());
    const BusTensor tensor = tensor_at(got.data());
    receiver.register_tensors("batch", std::span(&tensor, 1), soon()).recv(soon());
  });
  sender.init_pair({"pair", "a", "b"}, soon());
  const BusTensor tensor = tensor_at(own.get());
  sender.register_tensors("batch", std::span(&tensor, 1), soon()).send(soon());
  receives.join();
  EXPECT_EQ(std::memcmp(got.data(), own.get(), float_bytes), 0);
}

TEST(BusTest, APoolOutlivesTheBusesThatUseIt) {
  const auto keeps_it = connect(StoreUrl::parse("memory://bus_pool_life_test"));
  const auto pool = make_pool();
  std::shared_ptr<std::byte> memory;
  for (const Rank rank : {0, 1}) {
    Bus bus("memory://bus_pool_life_test", options_of(rank, pool));
    memory = bus.allocate(float_bytes);
  }
  std::memset(memory.get(), 1, float_bytes);
  EXPECT_GE(use_of(*pool).lent_bytes, float_bytes);
  memory.reset();
  trim(*pool);
  EXPECT_EQ(use_of(*pool).lent_bytes, 0u);
}

}  // namespace
}  // namespace tensorbus
