// What only the network fabric does. What every fabric does is in conformance_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "fabric/conformance/party.h"
#include "fabric/conformance/test_clock.h"
#include "fabric/ucx/endpoint.h"
#include "fabric/ucx/ucx.h"
#include "os/io/poll.h"

namespace tensorbus::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

UcxOptions options(const std::string& name, const std::string& secret) {
  UcxOptions result;
  result.identity = {"this host", 1, 1, random_id(), name};
  result.secret = secret;
  return result;
}

class UcxFabricTest : public testing::Test {
 protected:
  template <typename Condition>
  void until(Condition holds, Duration patience = seconds(20)) {
    const Deadline deadline = Deadline::after(patience);
    while (!holds()) {
      ASSERT_FALSE(deadline.expired()) << "nothing happens";
      reader_.poll();
      owner_.poll();
    }
  }
  std::shared_ptr<Peer> connect(const std::string& secret = "secret") {
    const std::size_t before = owner_.ups.size();
    auto peer = reader_->connect(owner_->address(), secret, Deadline::never());
    until([&] { return peer->up() && owner_.ups.size() > before; });
    return peer;
  }
  void let_pass(Duration time) {
    clock_.advance(time);
    for (int i = 0; i < 20; ++i) {
      reader_.poll();
      owner_.poll();
    }
  }

  static UcxOptions with_clock(UcxOptions result, const Clock& clock) {
    result.clock = &clock;
    return result;
  }

  TestClock clock_;
  Party reader_{make_ucx_fabric(with_clock(options("reader", "other"), clock_))};
  Party owner_{make_ucx_fabric(with_clock(options("owner", "secret"), clock_))};
};

TEST_F(UcxFabricTest, AWrongSecretIsDeniedAndTheOwnerHearsOfNobody) {
  const auto peer = reader_->connect(owner_->address(), "guess", Deadline::never());
  until([&] { return !reader_.losses.empty(); });
  EXPECT_EQ(reader_.losses[0].reason.code, Code::denied);
  EXPECT_THAT(reader_.losses[0].reason.message, testing::HasSubstr("owner"));
  let_pass(seconds(6));
  EXPECT_TRUE(owner_.ups.empty());
  EXPECT_TRUE(owner_.losses.empty());
}

TEST_F(UcxFabricTest, AnotherProcessAtTheAddressIsRefused) {
  Address stale = owner_->address();
  stale.identity.id = random_id();
  const auto peer = reader_->connect(stale, "secret", Deadline::never());
  until([&] { return !reader_.losses.empty(); });
  EXPECT_EQ(reader_.losses[0].reason.code, Code::invalid_argument);
  EXPECT_TRUE(owner_.ups.empty());
}

TEST_F(UcxFabricTest, HeartbeatsKeepAnIdleConnection) {
  const auto peer = connect();
  for (int i = 0; i < 20; ++i) let_pass(seconds(1));
  EXPECT_TRUE(peer->up());
  EXPECT_TRUE(owner_.losses.empty());
}

TEST_F(UcxFabricTest, APeerThatIsSilentForFiveHeartbeatsIsLost) {
  const auto peer = connect();
  reader_->attach(*peer, 1, static_cast<OpId>(5), Deadline::never());
  int heartbeats = 0;
  while (reader_.losses.empty() && heartbeats < 20) {
    clock_.advance(seconds(1));
    ++heartbeats;
    for (int i = 0; i < 20; ++i) reader_.poll();
  }
  EXPECT_GE(heartbeats, 5);
  EXPECT_LE(heartbeats, 6);
  ASSERT_EQ(reader_.losses.size(), 1u);
  EXPECT_EQ(reader_.losses[0].reason.code, Code::peer_lost);
  EXPECT_THAT(reader_.losses[0].reason.message, testing::HasSubstr("no sign of life from owner"));
  ASSERT_NE(reader_.completion(static_cast<OpId>(5)), nullptr);
  EXPECT_EQ(reader_.completion(static_cast<OpId>(5))->status.code, Code::peer_lost);
}

TEST_F(UcxFabricTest, AProcessThatWasStoppedItselfDoesNotBlameItsPeers) {
  const auto peer = connect();
  clock_.advance(seconds(60));
  for (int i = 0; i < 20; ++i) {
    reader_.poll();
    owner_.poll();
  }
  EXPECT_TRUE(peer->up());
}

TEST_F(UcxFabricTest, AnOwnerThatNobodyPollsDoesNotAnswerTheGreeting) {
  Party silent(make_ucx_fabric(with_clock(options("silent", "secret"), clock_)));
  reader_->connect(silent->address(), "secret", Deadline(clock_.now() + milliseconds(300)));
  clock_.advance(milliseconds(400));
  until([&] { return !reader_.losses.empty(); });
  EXPECT_EQ(reader_.losses[0].reason.code, Code::timeout);
}

TEST_F(UcxFabricTest, AnAddressOfAnotherKindIsRefused) {
  Address other = owner_->address();
  other.kind = "shm";
  EXPECT_THROW(reader_->connect(other, "secret", Deadline::never()), Error);
}

TEST_F(UcxFabricTest, ADamagedAddressIsRefusedBeforeUcxSeesIt) {
  const Address good = owner_->address();
  for (std::size_t i = 0; i < good.where.size(); ++i) {
    Address damaged = good;
    damaged.where[i] = static_cast<char>(damaged.where[i] ^ 10);
    EXPECT_THROW(reader_->connect(damaged, "secret", Deadline::never()), Error) << i;
    damaged.where = good.where.substr(0, i);
    EXPECT_THROW(reader_->connect(damaged, "secret", Deadline::never()), Error) << i;
  }
}

TEST_F(UcxFabricTest, AnAddressThatNoDeviceHasIsRefusedByName) {
  UcxOptions wrong = options("x", "y");
  wrong.bind = "192.0.2.1";
  try {
    make_ucx_fabric(wrong);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_THAT(error.what(), testing::HasSubstr("192.0.2.1"));
  }
}

// From somebody who knows where we listen but no secret.
TEST_F(UcxFabricTest, GarbageInOurMessagesIsDroppedAndHarmsNobody) {
  const auto good = connect();
  class Ignore final : public ucx::Receiver {
    void received(std::span<const std::byte>, std::span<const std::byte>) noexcept override {}
  } ignore;
  ucx::Outbox outbox;
  ucx::Worker worker({"127.0.0.1", {}}, ignore);
  ucx::Endpoint endpoint(worker, outbox, owner_->address().where);
  std::uint64_t random = 88172645463325252u;
  const auto next = [&random] {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  };
  for (int i = 0; i < 3000; ++i) {
    auto message = outbox.take();
    const ucx::Frame frame{static_cast<ucx::Kind>(1 + next() % ucx::last_kind),
                           next() % 2 == 0 ? 0 : next(), next() % 3, next() % 5, next() % 5};
    message->frame = ucx::encode(frame);
    if (next() % 4 == 0) message->frame[next() % message->frame.size()] ^= std::byte{0x40};
    message->bytes = next() % 300;
    for (std::byte& byte : message->room().subspan(0, message->bytes)) {
      byte = static_cast<std::byte>(next());
    }
    endpoint.send(std::move(message));
    worker.progress();
    owner_.poll();
  }
  ASSERT_FALSE(endpoint.failure());
  EXPECT_TRUE(owner_.losses.empty());
  EXPECT_EQ(owner_.ups.size(), 1u);
  reader_->send(*good, std::as_bytes(std::span("still here", 10)));
  until([&] { return !owner_.messages.empty(); });
  EXPECT_EQ(owner_.messages[0].bytes, "still here");
}

TEST_F(UcxFabricTest, AFabricThatIsDroppedSaysGoodbye) {
  const auto peer = connect();
  owner_.kill();
  until([&] { return !reader_.losses.empty(); });
  EXPECT_EQ(reader_.losses[0].reason.code, Code::peer_lost);
  EXPECT_THAT(reader_.losses[0].reason.message,
              testing::HasSubstr("owner (pid 1) closed the connection"));
}

}  // namespace
}  // namespace tensorbus::fabric
