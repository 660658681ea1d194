#include "store/torch/wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/testing/calls.h"
#include "store/testing/scripted_torch_server.h"
#include "store/torch/store.h"

namespace tensorbus::store {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string wire_key = "/late";
const Condition late{"late", false, 1, {}, {}};

// The status with which a wait for `late` fails.
Status failure_of_wait(Store& store, Deadline deadline, Cancellation* cancellation = nullptr) {
  try {
    store.wait(late, deadline, cancellation);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

// A look that finds nothing, then the wait.
void expect_wait(ScriptedPeer& peer) {
  peer.answer_check(wire_key, false);
  peer.expect(TorchWriter().wait({&wire_key, 1}));
}

// proves: K5
TEST(TorchWait, TheServerWakesAWaitForAKey) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    expect_wait(peer);
    peer.send_integer(std::uint8_t{0});
    peer.answer_value(wire_key, "here");
    peer.expect_close();
  }});
  const WaitResult result = connect_to(server)->wait(late, soon());
  EXPECT_EQ(result.value, "here");
  EXPECT_THAT(result.keys, ElementsAre("late"));
}

// proves: K5, K8
TEST(TorchWait, ATimeoutIsNotEarlyNamesTheKeyAndKeepsTheConnection) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    expect_wait(peer);
    peer.expect(TorchWriter().cancel_wait());
    peer.send_integer(std::uint8_t{1});
    peer.answer_check(wire_key, false);
    peer.answer_check("/other", true);
    peer.expect_close();
  }});
  const auto store = connect_to(server);
  const TimePoint start = now();
  const Status failure = failure_of_wait(*store, Deadline::after(milliseconds(30)));
  EXPECT_GE(now() - start, milliseconds(30));
  EXPECT_EQ(failure.code, Code::timeout);
  EXPECT_THAT(failure.message, HasSubstr("missing: \"late\""));
  EXPECT_TRUE(store->exists("other", soon()));
}

// proves: K5
TEST(TorchWait, AWakeThatCrossesTheCancelIsTakenAndKeepsTheConnection) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    expect_wait(peer);
    peer.expect(TorchWriter().cancel_wait());
    peer.send_slowly(std::string("\0\1", 2));
    peer.answer_value(wire_key, "just so");
    peer.answer_check("/other", true);
    peer.expect_close();
  }});
  const auto store = connect_to(server);
  EXPECT_EQ(store->wait(late, Deadline::after(milliseconds(20))).value, "just so");
  EXPECT_TRUE(store->exists("other", soon()));
}

// proves: K8
TEST(TorchWait, AServerThatStopsAnsweringEndsNoWaitLate) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    expect_wait(peer);
    peer.expect(TorchWriter().cancel_wait());
    peer.expect_close();
  }});
  const auto store = connect_to(server);
  const TimePoint start = now();
  EXPECT_EQ(failure_of_wait(*store, Deadline::after(milliseconds(20))).code, Code::timeout);
  EXPECT_LT(now() - start, std::chrono::seconds(5));
}

// proves: K9
TEST(TorchWait, IsSentAgainAfterARestart) {
  const ScriptedTorchServer server({
      [](ScriptedPeer& peer) {
        peer.hello();
        expect_wait(peer);
      },
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.expect(TorchWriter().wait({&wire_key, 1}));
        peer.send_integer(std::uint8_t{0});
        peer.answer_value(wire_key, "again");
        peer.expect_close();
      },
  });
  EXPECT_EQ(connect_to(server)->wait(late, soon()).value, "again");
}

TEST(TorchWait, BlocksNoOtherCall) {
  std::latch waiting(1);
  std::latch other_done(1);
  const ScriptedTorchServer server({
      [&](ScriptedPeer& peer) {
        peer.hello();
        expect_wait(peer);
        waiting.count_down();
        other_done.wait();
        peer.send_integer(std::uint8_t{0});
        peer.answer_value(wire_key, "");
        peer.expect_close();
      },
      [&](ScriptedPeer& peer) {
        peer.hello();
        peer.answer_check("/other", true);
        peer.expect_close();
      },
  });
  const auto store = connect_to(server);
  auto wait = std::async(std::launch::async, [&] { return store->wait(late, soon()); });
  waiting.wait();
  EXPECT_TRUE(store->exists("other", soon()));
  other_done.count_down();
  EXPECT_EQ(wait.get().value, "");
}

// A server that lets a wait wait, and says when it does.
ScriptedTorchServer::Script silent_wait(std::latch& waiting) {
  return [&waiting](ScriptedPeer& peer) {
    peer.hello();
    expect_wait(peer);
    waiting.count_down();
    peer.expect_close();
  };
}

TEST(TorchWait, CloseEndsItAndFurtherCallsFail) {
  std::latch waiting(1);
  const ScriptedTorchServer server({silent_wait(waiting)});
  const auto store = connect_to(server);
  auto wait = std::async(std::launch::async, [&] { return failure_of_wait(*store, soon()); });
  waiting.wait();
  store->close(false);
  EXPECT_EQ(wait.get().code, Code::cancelled);
  EXPECT_EQ(failure_of_wait(*store, soon()).code, Code::cancelled);
}

TEST(TorchWait, CancellationEndsIt) {
  std::latch waiting(1);
  const ScriptedTorchServer server({silent_wait(waiting)});
  const auto store = connect_to(server);
  Cancellation cancellation;
  auto wait = std::async(std::launch::async,
                         [&] { return failure_of_wait(*store, soon(), &cancellation); });
  waiting.wait();
  cancellation.cancel();
  EXPECT_EQ(wait.get().code, Code::cancelled);
}

std::atomic<bool> interrupted = false;
thread_local bool hears_interrupts = false;

// proves: K8
TEST(TorchWait, AnInterruptEndsIt) {
  std::latch waiting(1);
  const ScriptedTorchServer server({silent_wait(waiting)});
  const auto store = connect_to(server);
  interrupted = false;
  set_interrupt_check([] { return hears_interrupts && interrupted.load(); });
  auto wait = std::async(std::launch::async, [&] {
    hears_interrupts = true;
    return failure_of_wait(*store, soon());
  });
  waiting.wait();
  interrupted = true;
  EXPECT_EQ(wait.get().code, Code::interrupted);
  set_interrupt_check(nullptr);
}

// proves: K5
TEST(TorchWait, ForAllCandidatesWaitsInTheServerThenLooksAtTheValuesTogether) {
  const std::vector<std::string> keys{"/r/0", "/r/1"};
  const ScriptedTorchServer server({[&](ScriptedPeer& peer) {
    peer.hello();
    peer.expect(TorchWriter().check("/r/0").check("/r/1"));
    peer.send(std::string("\1\1", 2));
    peer.expect(TorchWriter().wait(keys));
    peer.send_integer(std::uint8_t{0});
    for (const std::string_view second : {"no", "1"}) {
      peer.expect(TorchWriter().check("/r/0").check("/r/1"));
      peer.send(std::string(2, '\0'));
      peer.expect(TorchWriter().multi_get(keys).check("/r/0").check("/r/1"));
      peer.send_text("1");
      peer.send_text(second);
      peer.send(std::string(2, '\0'));
    }
    peer.expect_close();
  }});
  const Condition all{.key = "r/*",
                      .is_pattern = true,
                      .count = 2,
                      .value = "1",
                      .candidates = {"r/1", "r/0", "r/1", "unlike"}};
  EXPECT_THAT(connect_to(server)->wait(all, soon()).keys, ElementsAre("r/0", "r/1"));
}

// proves: K5
TEST(TorchWait, ATimeoutSaysWhichCandidatesAreMissingAndWhy) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    for (bool polled = true; polled;) {
      peer.expect(TorchWriter().check("/r/0").check("/r/1").check("/r/2"));
      peer.send(std::string("\0\0\1", 3));
      const std::vector<std::string> present{"/r/0", "/r/1"};
      peer.expect(TorchWriter().multi_get(present).check("/r/0").check("/r/1"));
      peer.send_text("1");
      peer.send_text("0");
      peer.send(std::string(2, '\0'));
      polled = peer.more_comes();
    }
  }});
  const Condition two{.key = "r/*",
                      .is_pattern = true,
                      .count = 2,
                      .value = "1",
                      .candidates = {"r/0", "r/1", "r/2"}};
  const auto store = connect_to(server);
  try {
    store->wait(two, Deadline::after(milliseconds(30)));
    FAIL() << "the condition never holds";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::timeout);
    EXPECT_THAT(error.what(), HasSubstr("1 of 2 keys match \"r/*\""));
    EXPECT_THAT(error.what(), HasSubstr("missing: \"r/1\" (it holds \"0\", not \"1\"), \"r/2\""));
  }
}

}  // namespace
}  // namespace tensorbus::store
