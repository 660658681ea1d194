// Messages.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>

#include "fabric/conformance/conformance.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

TEST_P(FabricTest, MessagesComeInOrderAndOnceEach) {
  const auto peer = connect();
  const auto back = accepted_;
  constexpr std::uint32_t count = 2000;
  std::uint32_t sent = 0;
  std::uint32_t answered = 0;
  const auto number = [](const Message& message) {
    std::uint32_t value = 0;
    std::memcpy(&value, message.bytes.data(), sizeof value);
    return value;
  };
  const auto try_send = [](Party& party, Peer& to, std::uint32_t value) {
    std::vector<std::byte> bytes(sizeof value + value % 3000);
    std::memcpy(bytes.data(), &value, sizeof value);
    try {
      party->send(to, bytes);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::queue_full) << error.what();
      return false;
    }
  };
  until([&] {
    while (sent < count && try_send(reader_, *peer, sent)) ++sent;
    while (answered < owner_.messages.size() && try_send(owner_, *back, answered)) ++answered;
    return reader_.messages.size() == count;
  });
  for (std::uint32_t i = 0; i < count; ++i) {
    ASSERT_EQ(number(owner_.messages[i]), i);
    ASSERT_EQ(owner_.messages[i].bytes.size(), sizeof i + i % 3000);
    ASSERT_EQ(number(reader_.messages[i]), i);
  }
  EXPECT_EQ(owner_.messages.front().from, back);
}

TEST_P(FabricTest, MessagesOfAnySizeUpToTheLimitArrive) {
  const auto peer = connect();
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, max_message_bytes}) {
    const std::vector<std::byte> bytes(size, std::byte{7});
    reader_->send(*peer, bytes);
    until([&] { return !owner_.messages.empty(); });
    EXPECT_EQ(owner_.messages.front().bytes, std::string(size, '\7'));
    owner_.messages.clear();
  }
  EXPECT_THROW(reader_->send(*peer, std::vector<std::byte>(max_message_bytes + 1)), Error);
}

TEST_P(FabricTest, AnArmedFabricIsWokenByAMessage) {
  const auto peer = connect();
  const auto armed = [&](Party& party) { until([&] { return party->arm(); }); };
  armed(owner_);
  armed(reader_);
  pollfd wake{owner_->fd(), POLLIN, 0};
  reader_->send(*peer, std::vector<std::byte>(3));
  EXPECT_EQ(::poll(&wake, 1, 5000), 1);
  owner_.poll();
  EXPECT_EQ(owner_.messages.size(), 1u);
}

// Puts what it is given where events put theirs.
class Listener final : public Receiver {
 public:
  explicit Listener(std::deque<Message>& heard) : heard_(heard) {}
  void on_message(Peer& from, std::string_view message) override {
    heard_.push_back({{std::shared_ptr<Peer>(), &from}, std::string(message)});
  }

 private:
  std::deque<Message>& heard_;
};

TEST_P(FabricTest, AReceiverIsGivenTheSameAsEventsWouldBring) {
  Listener listener(owner_.messages);
  owner_->hand_to(listener);
  const auto peer = connect();
  constexpr std::size_t count = 300;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<std::byte> bytes(i, static_cast<std::byte>(i));
    reader_->send(*peer, bytes);
    if (i % 7 == 0) poll();
  }
  until([&] { return owner_.messages.size() == count; });
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(owner_.messages[i].bytes, std::string(i, static_cast<char>(i)));
    EXPECT_EQ(owner_.messages[i].from.get(), accepted_.get());
  }
}

}  // namespace
}  // namespace tensorbus::fabric
