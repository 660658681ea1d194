#include "fabric/core/pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "os/io/memory.h"
#include "os/testing/quiet_fork.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr PoolOptions small{std::size_t{1} << 20};

TEST(PoolTest, BlocksComeBackWhenTheLastHolderIsGone) {
  Pool pool(small);
  auto block = pool.allocate(1000);
  std::byte* const address = block.get();
  const auto second_holder = block;
  block.reset();
  EXPECT_GT(pool.use().lent_bytes, 0u);
  EXPECT_NE(pool.allocate(1000).get(), address);
  const_cast<std::shared_ptr<std::byte>&>(second_holder).reset();
  EXPECT_EQ(pool.use().lent_bytes, 0u);
  EXPECT_EQ(pool.allocate(1000).get(), address);
  EXPECT_EQ(pool.use().segments, 1u);
}

TEST(PoolTest, WhereBytesLieStaysTheSameWhileNoSegmentComesOrGoes) {
  Pool pool(small);
  auto first = pool.allocate(1000);
  const std::uint64_t before = pool.changes();
  auto second = pool.allocate(1000);
  second.reset();
  EXPECT_EQ(pool.changes(), before);
  auto large = pool.allocate(std::size_t{4} << 20);
  const std::uint64_t grown = pool.changes();
  EXPECT_NE(grown, before);
  large.reset();
  pool.trim();
  EXPECT_NE(pool.changes(), grown);
  const std::uint64_t trimmed = pool.changes();
  Pool other(small);
  const auto block = other.allocate(1000);
  const auto adopted = pool.adopt(other.lend(other.find(block.get(), 1000)->segment));
  EXPECT_NE(pool.changes(), trimmed);
}

TEST(PoolTest, BlocksDoNotOverlapAndAreAligned) {
  Pool pool(small);
  std::mt19937 random(1);
  std::vector<std::pair<std::shared_ptr<std::byte>, std::size_t>> held;
  for (int i = 0; i < 2000; ++i) {
    if (!held.empty() && random() % 3 == 0) {
      std::swap(held[random() % held.size()], held.back());
      const auto& [block, size] = held.back();
      for (std::size_t at = 0; at < size; ++at) ASSERT_EQ(block.get()[at], block.get()[0]);
      held.pop_back();
      continue;
    }
    const std::size_t size = 1 + random() % (std::size_t{1} << (random() % 18));
    auto block = pool.allocate(size);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % (size > 4096 ? 4096 : 64), 0u);
    ASSERT_TRUE(pool.find(block.get(), size).has_value());
    std::memset(block.get(), i, size);
    held.emplace_back(std::move(block), size);
  }
}

TEST(PoolTest, APeerSeesWhatTheOwnerWritesAndCannotWrite) {
  Pool pool(small);
  const auto block = pool.allocate(100);
  const auto place = pool.find(block.get(), 100);
  ASSERT_TRUE(place.has_value());
  const os::Fd file = pool.share(place->segment);
  const std::size_t size = os::checked_memfd_size(file);
  EXPECT_EQ(size, pool.segment_size(place->segment));
  const os::Mapping mapping = os::map(file, size, false, false);
  block.get()[99] = std::byte{42};
  EXPECT_EQ(mapping.data()[place->offset + 99], std::byte{42});
  EXPECT_THROW(os::map(file, size, true, false), Error);
}

TEST(PoolTest, FindsOnlyItsOwnMemory) {
  Pool pool(small);
  const auto large = pool.allocate(3 << 20);
  EXPECT_TRUE(pool.find(large.get(), 3 << 20).has_value());
  EXPECT_FALSE(pool.find(large.get(), 30 << 20).has_value());
  const int elsewhere = 0;
  EXPECT_FALSE(pool.find(&elsewhere, 1).has_value());
  EXPECT_THROW(pool.share(99), Error);
}

TEST(PoolTest, APoolThatLendsLittleTakesLittle) {
  constexpr std::size_t megabyte = std::size_t{1} << 20;
  Pool pool;
  std::vector<std::shared_ptr<std::byte>> held{pool.allocate(10)};
  EXPECT_EQ(pool.use().reserved_bytes, megabyte);
  held.push_back(pool.allocate(20 * megabyte));
  EXPECT_EQ(pool.use().reserved_bytes, 65 * megabyte) << "with room for two more of that size";
  held.push_back(pool.allocate(20 * megabyte));
  EXPECT_EQ(pool.use().segments, 2u);
  for (int i = 0; i < 64; ++i) held.push_back(pool.allocate(megabyte));
  EXPECT_LE(pool.use().segments, 4u) << "they are as large as they may be by now";
}

TEST(PoolTest, LargeBlocksAreKeptAndTrimmed) {
  Pool pool(small);
  std::byte* address = nullptr;
  for (int i = 0; i < 5; ++i) {
    const auto block = pool.allocate(3 << 20);
    if (address != nullptr) {
      EXPECT_EQ(block.get(), address);
    }
    address = block.get();
  }
  EXPECT_EQ(pool.use().segments, 1u);
  const auto held = pool.allocate(10);
  pool.trim();
  EXPECT_EQ(pool.use().segments, 1u);
  EXPECT_EQ(pool.use().reserved_bytes, small.segment_bytes);
  EXPECT_TRUE(pool.find(held.get(), 10).has_value());
}

TEST(PoolTest, LargeBlocksTakeTheirPagesAndNoMore) {
  Pool pool(small);
  const std::size_t bytes = (std::size_t{5} << 20) + 1;
  std::byte* address = nullptr;
  {
    const auto block = pool.allocate(bytes);
    address = block.get();
    EXPECT_LE(pool.use().lent_bytes, bytes + os::page_size());
    EXPECT_EQ(pool.use().reserved_bytes, pool.use().lent_bytes);
  }
  // One that is a little smaller gets it, one that would leave much of it unused does not.
  EXPECT_EQ(pool.allocate(bytes - bytes / 8).get(), address);
  EXPECT_NE(pool.allocate(bytes / 2).get(), address);
  EXPECT_EQ(pool.allocate(bytes).get(), address);
}

TEST(PoolTest, BlocksOutliveTheirPool) {
  std::shared_ptr<std::byte> block;
  {
    Pool pool(small);
    block = pool.allocate(100);
  }
  std::memset(block.get(), 1, 100);
}

TEST(PoolTest, MemoryThatIsNotThereIsAnErrorWithAHint) {
  Pool pool(small);
  try {
    pool.allocate(std::size_t{1} << 45);
    FAIL() << "32 TiB were given";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no room"), std::string::npos) << error.what();
  }
  EXPECT_NE(pool.allocate(10), nullptr);
}

TEST(PoolTest, ThreadsShareIt) {
  Pool pool(small);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::shared_ptr<std::byte>> held;
      for (int i = 0; i < 2000; ++i) {
        held.push_back(pool.allocate(1 + random() % 5000));
        *held.back() = std::byte{1};
        if (held.size() > 20) held.erase(held.begin());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.use().lent_bytes, 0u);
}

TEST(PoolTest, AForkedChildOwnsNothing) {
  auto pool = std::make_unique<Pool>(small);
  auto block = pool->allocate(100);
  *block = std::byte{5};
  EXPECT_TRUE(os::holds_in_child([&] {
    bool right = *block == std::byte{5};
    block.reset();
    try {
      pool->allocate(1);
      right = false;
    } catch (const Error&) {
    }
    pool.reset();
    return right;
  }));
  EXPECT_GT(pool->use().lent_bytes, 0u);
  *block = std::byte{6};
}

}  // namespace
}  // namespace tensorbus::fabric
