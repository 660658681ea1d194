#include "store/torch/barrier.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <thread>

#include "base/clock.h"
#include "base/testing/calls.h"
#include "store/testing/scripted_torch_server.h"
#include "store/torch/store.h"

namespace tensorbus::store {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

const std::string state_key = "tensorbus/barrier/b";

// The desired state of the next request, a COMPARE_SET that expects `expected`.
std::string receive_arrival(ScriptedPeer& peer, const std::string& expected = "") {
  peer.expect_op(TorchOp::compare_set);
  EXPECT_EQ(peer.receive_text(), state_key);
  EXPECT_EQ(peer.receive_text(), expected);
  return peer.receive_text();
}

std::string accept_arrival(ScriptedPeer& peer) {
  const std::string state = receive_arrival(peer);
  peer.send_text(state);
  return state;
}

// The wait for the release key of `state`.
void expect_release_wait(ScriptedPeer& peer, const std::string& state) {
  Decoder numbers(state);
  const auto epoch = numbers.integer<std::uint64_t>();
  const auto round = numbers.integer<std::uint64_t>();
  const std::string key = fmt::format("{}/{:x}/{}", state_key, epoch, round);
  peer.expect(TorchWriter().wait({&key, 1}));
}

// `state` after somebody else has come last.
std::string completed(const std::string& state) {
  Decoder numbers(state);
  const auto epoch = numbers.integer<std::uint64_t>();
  const auto round = numbers.integer<std::uint64_t>();
  return Encoder()
      .integer(epoch)
      .integer(round + 1)
      .integer(std::uint64_t{1})
      .integer(std::uint64_t{0})
      .bytes();
}

void pass(const ScriptedTorchServer& server, Deadline deadline = soon()) {
  const auto store = connect_torch(server.host(), {soon(), {}});
  store->barrier("b", 2, "1", deadline);
}

// A server of our own is as good as torch's for what all members must agree on.
class TorchBarrierRounds : public ::testing::Test {
 protected:
  static StoreServerOptions any_port() {
    StoreServerOptions options;
    options.port = 0;
    return options;
  }
  std::unique_ptr<Store> connect() const {
    return connect_torch({"127.0.0.1", server_.port()}, {soon(), {}});
  }
  StoreServer server_{any_port()};
};

TEST_F(TorchBarrierRounds, NobodyLeavesBeforeAllHaveCome) {
  constexpr int rounds = 30;
  constexpr int members = 4;
  std::array<std::atomic<int>, rounds> arrived{};
  std::vector<std::future<void>> passing;
  for (int i = 0; i < members; ++i) {
    passing.push_back(std::async(std::launch::async, [&] {
      const auto store = connect();
      for (auto& arrivals : arrived) {
        ++arrivals;
        store->barrier("b", members, "all have one name", soon());
        EXPECT_EQ(arrivals, members);
      }
    }));
  }
  for (auto& member : passing) member.get();
  EXPECT_TRUE(connect()->list("", soon()).empty());
  // The state and the release keys of the last two rounds.
  EXPECT_EQ(server_.stats().keys, 3U);
}

TEST_F(TorchBarrierRounds, ACancelledMemberLeavesAndAnotherCountIsRefused) {
  Cancellation leave;
  auto first =
      std::async(std::launch::async, [&] { connect()->barrier("b", 3, "0", soon(), &leave); });
  while (server_.stats().waits == 0) std::this_thread::yield();
  try {
    connect()->barrier("b", 2, "1", soon());
    FAIL() << "the other member waits for three";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("1 of 3 arrived: 0; missing: rank 1, 2"));
  }
  leave.cancel();
  EXPECT_THROW(first.get(), Error);
  // Nobody is inside any more, so another count is as good as any.
  connect()->barrier("b", 1, "2", soon());
}

// proves: K9
TEST(TorchBarrier, AnArrivalWhoseAnswerIsLostIsLookedFor) {
  std::promise<std::string> arrival;
  const ScriptedTorchServer server({
      [&](ScriptedPeer& peer) {
        peer.hello();
        arrival.set_value(receive_arrival(peer));
        peer.hang_up();
      },
      [&](ScriptedPeer& peer) {
        peer.hello();
        const std::string state = arrival.get_future().get();
        peer.answer_value(state_key, state);
        expect_release_wait(peer, state);
        peer.send_integer(std::uint8_t{0});
        peer.expect_close();
      },
  });
  pass(server);
}

// proves: K9
TEST(TorchBarrier, AnArrivalThatWasPassedMeanwhileIsInDoubt) {
  std::promise<std::string> arrival;
  const ScriptedTorchServer server({
      [&](ScriptedPeer& peer) {
        peer.hello();
        arrival.set_value(receive_arrival(peer));
        peer.hang_up();
      },
      [&](ScriptedPeer& peer) {
        peer.hello();
        const std::string state = arrival.get_future().get();
        peer.answer_value(state_key, completed(state));
        peer.expect_close();
      },
  });
  try {
    pass(server);
    FAIL() << "nobody knows whether it passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unreachable);
    EXPECT_THAT(error.what(), HasSubstr("may or may not have been counted"));
  }
}

// proves: K9
TEST(TorchBarrier, ArrivesAgainAtAServerThatHasLostItsState) {
  const ScriptedTorchServer server({
      [](ScriptedPeer& peer) {
        peer.hello();
        expect_release_wait(peer, accept_arrival(peer));
      },
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.answer_check(state_key, false);
        expect_release_wait(peer, accept_arrival(peer));
        peer.send_integer(std::uint8_t{0});
        peer.expect_close();
      },
  });
  pass(server);
}

// Until a deadline that comes while the client waits for the others, and not before it has arrived.
constexpr milliseconds time_to_arrive{500};

// proves: K8
TEST(TorchBarrier, AtTheDeadlineTheArrivalIsTakenBackAndTheMissingAreNamed) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    const std::string state = accept_arrival(peer);
    expect_release_wait(peer, state);
    peer.expect(TorchWriter().cancel_wait());
    peer.send_integer(std::uint8_t{1});
    peer.answer_value(state_key, state);
    const std::string without = receive_arrival(peer, state);
    EXPECT_EQ(without, state.substr(0, without.size()));
    EXPECT_EQ(without.size(), 4 * sizeof(std::uint64_t));
    peer.send_text(without);
    peer.expect_close();
  }});
  const TimePoint start = now();
  try {
    pass(server, Deadline::after(time_to_arrive));
    FAIL() << "nobody else came";
  } catch (const Error& error) {
    EXPECT_GE(now() - start, time_to_arrive);
    EXPECT_EQ(error.code(), Code::timeout);
    EXPECT_THAT(error.what(), HasSubstr("1 of 2 arrived: 1; missing: rank 0"));
  }
}

TEST(TorchBarrier, ARoundThatIsCompleteAtTheDeadlineIsPassed) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    const std::string state = accept_arrival(peer);
    expect_release_wait(peer, state);
    peer.expect(TorchWriter().cancel_wait());
    peer.send_integer(std::uint8_t{1});
    peer.answer_value(state_key, completed(state));
    peer.expect_close();
  }});
  pass(server, Deadline::after(time_to_arrive));
}

}  // namespace
}  // namespace tensorbus::store
