#include "fabric/shm/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "os/io/memory.h"
#include "os/io/poll.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr std::size_t capacity = 4096;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// One file, mapped twice, as two processes would.
class RingTest : public testing::Test {
 protected:
  os::Fd file_ = os::sealed_memfd("ring test", 2 * capacity);
  os::Mapping here_ = os::map(file_, 2 * capacity, true, false);
  os::Mapping there_ = os::map(file_, 2 * capacity, true, false);
  RingProducer producer_{here_.data(), capacity};
  RingConsumer consumer_{there_.data(), capacity};
  RingMessage message_;
};

TEST_F(RingTest, GivesMessagesBackInOrder) {
  EXPECT_TRUE(consumer_.empty());
  for (std::size_t size = 0; size < 3000; size += 7) {
    ASSERT_TRUE(producer_.push(static_cast<std::uint8_t>(size), bytes_of(std::string(size, 'a'))));
    ASSERT_TRUE(consumer_.pop(message_));
    EXPECT_EQ(message_.kind, static_cast<std::uint8_t>(size));
    EXPECT_EQ(message_.body, std::string(size, 'a'));
  }
  EXPECT_FALSE(consumer_.pop(message_));
}

TEST_F(RingTest, IsFullWhenItIsAndAsksForRoom) {
  const std::string body(900, 'x');
  int count = 0;
  while (producer_.push(1, bytes_of(body))) ++count;
  EXPECT_EQ(count, 4);
  EXPECT_TRUE(consumer_.must_wake());
  EXPECT_FALSE(consumer_.must_wake());
  consumer_.pop(message_);
  EXPECT_TRUE(producer_.push(1, bytes_of(body)));
  EXPECT_THROW(producer_.push(1, bytes_of(std::string(capacity, 'x'))), Error);
}

TEST_F(RingTest, ASleeperIsWokenOnce) {
  EXPECT_TRUE(consumer_.sleep());
  producer_.push(1, {});
  EXPECT_TRUE(producer_.must_wake());
  EXPECT_FALSE(producer_.must_wake());
  EXPECT_FALSE(consumer_.sleep());
}

// proves: nothing is lost or reordered, and no wake-up is missed, whatever the timing.
TEST_F(RingTest, TwoThreadsThatSleepLoseNothing) {
  constexpr std::uint32_t count = 20'000;
  os::EventFd for_consumer;
  os::EventFd for_producer;
  const auto wait = [](os::EventFd& doorbell) {
    pollfd descriptor{doorbell.get(), POLLIN, 0};
    ASSERT_GT(::poll(&descriptor, 1, 30'000), 0) << "a wake-up was missed";
    doorbell.drain();
  };
  std::thread producer([&] {
    std::mt19937 random(1);
    for (std::uint32_t i = 0; i < count; ++i) {
      std::string body(4 + random() % 300, static_cast<char>(i));
      std::memcpy(body.data(), &i, sizeof i);
      while (!producer_.push(7, bytes_of(body))) wait(for_producer);
      if (producer_.must_wake()) for_consumer.signal();
    }
  });
  for (std::uint32_t i = 0; i < count;) {
    if (!consumer_.pop(message_)) {
      if (consumer_.sleep()) wait(for_consumer);
      continue;
    }
    if (consumer_.must_wake()) for_producer.signal();
    std::uint32_t number = 0;
    std::memcpy(&number, message_.body.data(), sizeof number);
    EXPECT_EQ(number, i);
    EXPECT_EQ(message_.body.back(),
              message_.body.size() > 4 ? static_cast<char>(i) : message_.body.back());
    ++i;
  }
  producer.join();
}

TEST_F(RingTest, BrokenContentsAreAnErrorAndNothingElse) {
  std::mt19937 random(2);
  for (int round = 0; round < 20'000; ++round) {
    RingProducer producer(here_.data(), capacity);
    RingConsumer consumer(there_.data(), capacity);
    std::memset(here_.data(), 0, sizeof(RingHeader));
    try {
      for (int step = 0; step < 6; ++step) {
        if (random() % 2 == 0) producer.push(1, bytes_of(std::string(random() % 600, 'y')));
        auto* words = reinterpret_cast<std::uint32_t*>(here_.data());
        const std::size_t at =
            random() % 3 == 0 ? random() % (sizeof(RingHeader) / 4) : random() % (capacity / 4);
        words[at] = random() % 2 == 0 ? static_cast<std::uint32_t>(random())
                                      : static_cast<std::uint32_t>(random() % 5000);
        consumer.pop(message_);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::failed);
    }
  }
}

}  // namespace
}  // namespace tensorbus::fabric
