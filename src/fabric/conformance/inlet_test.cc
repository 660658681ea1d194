// Memory that peers write into.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "fabric/conformance/conformance.h"
#include "fabric/core/pool.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(seed * 31 + i / 7);
  return bytes;
}

class InletTest : public FabricTest {
 protected:
  struct Inlet {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes;
    std::uint64_t number;
  };
  // Of the owner, for the reader.
  Inlet open(std::size_t bytes) {
    auto memory = pool_.allocate(bytes);
    std::memset(memory.get(), 0, bytes);
    const std::uint64_t number = owner_->open_inlet(*accepted_, {memory.get(), bytes}, &pool_);
    return {std::move(memory), bytes, number};
  }
  static bool holds(const Inlet& inlet, std::span<const std::byte> bytes) {
    return std::ranges::equal(std::span(inlet.memory.get(), bytes.size()), bytes);
  }

  Pool pool_{PoolOptions{std::size_t{1} << 20}};
};

TEST_P(InletTest, BytesAreThereBeforeTheNextMessage) {
  const auto peer = connect();
  for (const std::size_t size : {0, 1, 64, 5000, 64'000, 64'001, 3'000'000}) {
    const Inlet inlet = open(size + 1);
    owner_->send(*accepted_, std::as_bytes(std::span("go", 2)));
    until([&] { return !reader_.messages.empty(); });
    const auto bytes = pattern(size, size);
    reader_->write(*peer, inlet.number, 0, bytes);
    reader_->send(*peer, {});
    until([&] { return !owner_.messages.empty(); });
    EXPECT_TRUE(holds(inlet, bytes)) << size;
    reader_.messages.clear();
    owner_.messages.clear();
  }
}

TEST_P(InletTest, AnInletIsKnownToWhoeverIsToldOfIt) {
  const auto peer = connect();
  // More than a socket's buffer holds.
  constexpr std::uint64_t count = 600;
  std::vector<Inlet> inlets;
  std::size_t told = 0;
  std::size_t written = 0;
  until([&] {
    while (inlets.size() < count && inlets.size() - written < 400) {
      inlets.push_back(open(64));
      EXPECT_EQ(inlets.back().number, inlets.size());
    }
    try {
      for (; told < inlets.size(); ++told) {
        owner_->send(*accepted_, std::as_bytes(std::span(&inlets[told].number, 1)));
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::queue_full);
    }
    for (; written < reader_.messages.size(); ++written) {
      std::uint64_t number = 0;
      std::memcpy(&number, reader_.messages[written].bytes.data(), sizeof number);
      reader_->write(*peer, number, 8, pattern(56, number));
    }
    return written == count;
  });
  reader_->send(*peer, {});
  until([&] { return !owner_.messages.empty(); });
  for (const Inlet& inlet : inlets) {
    EXPECT_EQ(std::memcmp(inlet.memory.get() + 8, pattern(56, inlet.number).data(), 56), 0);
  }
}

TEST_P(InletTest, WhereBothSeeItItIsWrittenWithoutACall) {
  const auto peer = connect();
  const Inlet inlet = open(1000);
  owner_->send(*accepted_, {});
  until([&] { return !reader_.messages.empty(); });
  const auto [seen, size] = reader_->inlet(*peer, inlet.number);
  EXPECT_EQ(seen == nullptr, GetParam().name.starts_with("ucx"));
  EXPECT_EQ(reader_->inlet(*peer, inlet.number + 1).memory, nullptr);
  if (seen == nullptr) return;
  EXPECT_EQ(size, 1000U);
  const auto bytes = pattern(1000, 5);
  std::memcpy(seen.get(), bytes.data(), bytes.size());
  reader_->send(*peer, {});
  until([&] { return !owner_.messages.empty(); });
  EXPECT_TRUE(holds(inlet, bytes));
  reader_->disconnect(*peer);
  until([&] { return !reader_.losses.empty() && !owner_.losses.empty(); });
  std::memset(seen.get(), 0, 1000);  // mapped as long as it is held
}

TEST_P(InletTest, AClosedInletTakesNothingMore) {
  const auto peer = connect();
  const Inlet closed = open(1000);
  const Inlet open_one = open(1000);
  owner_->close_inlet(*accepted_, closed.number);
  owner_->send(*accepted_, {});
  until([&] { return !reader_.messages.empty(); });
  // The news comes by another way than messages.
  until([&] { return reader_->inlet(*peer, closed.number).memory == nullptr; });
  reader_->write(*peer, closed.number, 0, pattern(1000, 1));
  reader_->write(*peer, open_one.number, 0, pattern(1000, 2));
  reader_->send(*peer, {});
  until([&] { return !owner_.messages.empty(); });
  EXPECT_TRUE(holds(closed, std::vector<std::byte>(1000)));
  EXPECT_TRUE(holds(open_one, pattern(1000, 2)));
}

TEST_P(InletTest, NobodyWritesOutsideOfAnInlet) {
  struct Case {
    std::uint64_t inlet;
    std::uint64_t offset;
    std::size_t bytes;
  };
  for (const Case& bad : {Case{1, 1, 1000}, Case{1, 1001, 1}, Case{1, UINT64_MAX, 2},
                          Case{1, 0, 1001}, Case{2, 0, 1}, Case{0, 0, 1}}) {
    const auto peer = connect();
    const Inlet inlet = open(1000);
    ASSERT_EQ(inlet.number, 1U);
    owner_->send(*accepted_, {});
    until([&] { return !reader_.messages.empty(); });
    try {
      reader_->write(*peer, bad.inlet, bad.offset, pattern(bad.bytes, 1));
      until([&] { return !reader_.losses.empty(); });  // it was sent, and its receiver ended it
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      reader_->disconnect(*peer);
      until([&] { return !reader_.losses.empty(); });
    }
    EXPECT_TRUE(holds(inlet, std::vector<std::byte>(1000)));
    until([&] { return !owner_.losses.empty(); });
    reader_.losses.clear();
    owner_.losses.clear();
    reader_.messages.clear();
  }
}

TEST_P(InletTest, OfALostPeerThereIsNone) {
  const auto peer = connect();
  owner_.kill();
  until([&] { return !reader_.losses.empty(); });
  EXPECT_THROW(reader_->write(*peer, 1, 0, pattern(1, 1)), Error);
  EXPECT_THROW(reader_->open_inlet(*peer, {pool_.allocate(64).get(), 64}, &pool_), Error);
}

INSTANTIATE_TEST_SUITE_P(All, InletTest, testing::ValuesIn(available_kinds()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace tensorbus::fabric
