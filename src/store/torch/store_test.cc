#include "store/torch/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/testing/calls.h"
#include "store/testing/scripted_torch_server.h"

namespace tensorbus::store {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// The status with which `call` fails.
template <typename Call>
Status failure_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

std::optional<std::string> get_one(Store& store, const std::string& key) {
  return store.get({&key, 1}, soon()).front();
}

void set_one(Store& store, const std::string& key, const std::string& value) {
  const Entry entry{key, value};
  store.set({&entry, 1}, soon());
}

TEST(TorchConnect, WaitsForAServerToListen) {
  std::uint16_t port = 0;
  { port = os::local_port(os::listen_tcp("127.0.0.1", 0)); }
  auto connecting = std::async(std::launch::async, [&] {
    return connect_torch({"127.0.0.1", port}, {soon(), {}});
  });
  EXPECT_EQ(connecting.wait_for(milliseconds(20)), std::future_status::timeout);
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
                                     peer.hello();
                                     peer.expect_close();
                                   }},
                                   port);
  EXPECT_EQ(connecting.get()->url(), "tcpstore://127.0.0.1:" + std::to_string(port));
}

// proves: K8
TEST(TorchConnect, NobodyListeningIsUnreachableAtTheDeadlineAndNotBefore) {
  std::uint16_t port = 0;
  { port = os::local_port(os::listen_tcp("127.0.0.1", 0)); }
  const TimePoint start = now();
  const Status failure = failure_of([&] {
    connect_torch({"127.0.0.1", port}, {Deadline::after(milliseconds(30)), {}});
  });
  EXPECT_EQ(failure.code, Code::unreachable) << failure.message;
  EXPECT_GE(now() - start, milliseconds(30));
}

TEST(TorchConnect, AServerThatHangsUpIsRefusedAtOnce) {
  const ScriptedTorchServer server(
      {[](ScriptedPeer& peer) { peer.expect_and_ping(TorchWriter().validate()); }});
  const Status failure = failure_of([&] { connect_to(server); });
  EXPECT_EQ(failure.code, Code::unreachable);
  EXPECT_THAT(failure.message, HasSubstr("no TCPStore server, or it asks for a token"));
}

TEST(TorchConnect, AServerOfAnotherProtocolIsRefused) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.expect_and_ping(TorchWriter().validate());
    peer.send("HTTP/1.1 400 Bad Request");
  }});
  const Status failure = failure_of([&] { connect_to(server); });
  EXPECT_EQ(failure.code, Code::failed);
  EXPECT_THAT(failure.message, HasSubstr("does not speak torch's TCPStore protocol"));
}

// proves: K1
TEST(TorchStore, SetReturnsWhenThePingBehindItIsAnswered) {
  std::atomic<bool> answered = false;
  const ScriptedTorchServer server({[&](ScriptedPeer& peer) {
    peer.hello();
    peer.expect_and_ping(TorchWriter().set("/key", "value"));
    answered = true;
    peer.pong();
    const std::vector<Entry> entries{{"/a", "1"}, {"/b", ""}};
    peer.expect_and_ping(TorchWriter().multi_set(entries));
    peer.pong();
    peer.expect_close();
  }});
  const auto store = connect_to(server);
  set_one(*store, "key", "value");
  EXPECT_TRUE(answered);
  const std::vector<Entry> entries{{"a", "1"}, {"b", ""}};
  store->set(entries, soon());
}

// proves: K2, K4
TEST(TorchStore, RepliesMayComeByteByByte) {
  const std::string value("zero\0inside", 11);
  const ScriptedTorchServer server({[&](ScriptedPeer& peer) {
    peer.hello();
    peer.expect(TorchWriter().check("/a").check("/none").check("/empty"));
    peer.send_slowly(std::string("\0\1\0", 3));
    const std::vector<std::string> present{"/a", "/empty"};
    peer.expect(TorchWriter().multi_get(present).check("/a").check("/empty"));
    peer.send_slowly(Encoder()
                         .integer(std::uint64_t{value.size()})
                         .raw(value)
                         .integer(std::uint64_t{0})
                         .integer(std::uint16_t{0})
                         .bytes());
    peer.expect_close();
  }});
  const auto store = connect_to(server);
  const std::vector<std::string> keys{"a", "none", "empty"};
  const auto values = store->get(keys, soon());
  EXPECT_EQ(values[0], value);
  EXPECT_EQ(values[1], std::nullopt);
  EXPECT_EQ(values[2], "");
}

// proves: K2
TEST(TorchStore, AKeyThatVanishesDuringGetIsAbsent) {
  const ScriptedTorchServer server({
      [](ScriptedPeer& peer) {
        peer.hello();
        // As the libuv server does it: an empty value, and then it is not there.
        const std::string key = "/flicker";
        peer.answer_check(key, true);
        peer.expect(TorchWriter().multi_get({&key, 1}).check(key));
        peer.send_text("");
        peer.send_integer(std::uint8_t{1});
        // As the legacy server does it: it hangs up.
        peer.answer_check(key, true);
        peer.expect(TorchWriter().multi_get({&key, 1}).check(key));
      },
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.answer_check("/flicker", false);
        peer.expect_close();
      },
  });
  const auto store = connect_to(server);
  EXPECT_EQ(get_one(*store, "flicker"), std::nullopt);
  EXPECT_EQ(get_one(*store, "flicker"), std::nullopt);
}

TEST(TorchStore, GarbageIsAnErrorAndCostsTheConnectionOnly) {
  const ScriptedTorchServer server({
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.expect(TorchWriter().check("/a"));
        peer.send_integer(std::uint8_t{7});
        peer.expect_close();
      },
      [](ScriptedPeer& peer) {
        peer.hello();
        const std::string key = "/a";
        peer.answer_check(key, true);
        peer.expect(TorchWriter().multi_get({&key, 1}).check(key));
        peer.send_integer(~std::uint64_t{0});
        peer.expect_close();
      },
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.expect(TorchWriter().list_keys());
        peer.send_integer(std::int64_t{-1});
        peer.expect_close();
      },
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.answer_check("/a", true);
        peer.expect_close();
      },
  });
  const auto store = connect_to(server);
  EXPECT_EQ(failure_of([&] { store->exists("a", soon()); }).code, Code::failed);
  EXPECT_EQ(failure_of([&] { get_one(*store, "a"); }).code, Code::failed);
  EXPECT_EQ(failure_of([&] { store->list("", soon()); }).code, Code::failed);
  EXPECT_TRUE(store->exists("a", soon()));
}

// proves: K9
TEST(TorchStore, SetIsSentAgainAfterARestart) {
  const ScriptedTorchServer server({
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.expect_and_ping(TorchWriter().set("/a", "1"));
      },
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.expect_and_ping(TorchWriter().set("/a", "1"));
        peer.pong();
        peer.expect_close();
      },
  });
  const auto store = connect_to(server);
  set_one(*store, "a", "1");
}

// proves: K9
TEST(TorchStore, AnAddWhoseAnswerIsLostIsNotSentAgain) {
  std::promise<void> hung_up;
  const ScriptedTorchServer server({
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.expect(TorchWriter().add("/n", 1));
      },
      [&](ScriptedPeer& peer) {
        peer.hello();
        peer.answer_value("/n", "1");
        peer.hang_up();
        hung_up.set_value();
      },
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.expect(TorchWriter().add("/n", 2));
        peer.send_integer(std::int64_t{3});
        peer.expect_close();
      },
  });
  const auto store = connect_to(server);
  const Status failure = failure_of([&] { store->add("n", 1, soon()); });
  EXPECT_EQ(failure.code, Code::unreachable);
  EXPECT_THAT(failure.message, HasSubstr("may or may not have been applied"));
  // A connection that was hung up on while it was idle is no answer lost.
  hung_up.get_future().wait();
  EXPECT_EQ(store->add("n", 2, soon()), 3);
}

TEST(TorchStore, AnAddToATextSaysSo) {
  const ScriptedTorchServer server({
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.expect(TorchWriter().add("/n", 1));
      },
      [](ScriptedPeer& peer) {
        peer.hello();
        peer.answer_value("/n", "seven");
        peer.expect_close();
      },
  });
  const auto store = connect_to(server);
  const Status failure = failure_of([&] { store->add("n", 1, soon()); });
  EXPECT_EQ(failure.code, Code::invalid_argument);
  EXPECT_THAT(failure.message, HasSubstr("\"seven\", which is not a whole number"));
}

TEST(TorchStore, AnswersLostAtTheDeadlineMayHaveBeenApplied) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    peer.expect(TorchWriter().delete_key("/a"));
    peer.expect_close();
  }});
  const auto store = connect_to(server);
  const TimePoint start = now();
  const Status failure = failure_of([&] { store->erase("a", Deadline::after(milliseconds(30))); });
  EXPECT_GE(now() - start, milliseconds(30));
  EXPECT_EQ(failure.code, Code::timeout);
  EXPECT_THAT(failure.message, HasSubstr("may or may not have been applied"));
}

TEST(TorchStore, CompareAndSetLooksBeforeItSwaps) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    peer.answer_check("/k", false);  // a COMPARE_SET now would wake those who wait for the key
    peer.answer_value("/k", "other");
    peer.answer_value("/k", "old");
    peer.expect(TorchWriter().compare_set("/k", "old", "new"));
    peer.send_text("new");
    peer.answer_value("/k", "old");
    peer.expect(TorchWriter().compare_set("/k", "old", "new"));
    peer.send_text("old");  // torch's word for absent
    peer.answer_check("/k", false);
    peer.expect(TorchWriter().compare_set("/k", "", "new"));
    peer.send_text("faster");
    peer.expect_close();
  }});
  const auto store = connect_to(server);
  const auto swap = [&](const std::optional<std::string>& expected) {
    const Swap result = store->compare_and_set("k", expected, "new", soon());
    return std::pair(result.swapped, result.value);
  };
  using Answer = std::pair<bool, std::optional<std::string>>;
  EXPECT_EQ(swap("old"), Answer(false, std::nullopt));
  EXPECT_EQ(swap("old"), Answer(false, "other"));
  EXPECT_EQ(swap("old"), Answer(true, "new"));
  EXPECT_EQ(swap("old"), Answer(false, std::nullopt));
  EXPECT_EQ(swap(std::nullopt), Answer(false, "faster"));
}

TEST(TorchStore, ListShowsTheKeysOfUsersOnly) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    peer.expect(TorchWriter().list_keys());
    peer.send_integer(std::int64_t{4});
    for (const std::string_view key : {"init/", "/b/2", "/b/1", "/c"}) peer.send_text(key);
    peer.expect_close();
  }});
  const auto store = connect_to(server);
  EXPECT_THAT(store->list("b/", soon()), testing::ElementsAre("b/1", "b/2"));
}

TEST(TorchStore, AServerTooOldToListKeysIsNotAskedForEver) {
  const auto hang_up_on_list = [](ScriptedPeer& peer) {
    peer.hello();
    peer.expect(TorchWriter().list_keys());
  };
  const ScriptedTorchServer server({hang_up_on_list, hang_up_on_list, hang_up_on_list});
  const auto store = connect_to(server);
  EXPECT_EQ(failure_of([&] { store->list("", soon()); }).code, Code::unsupported);
}

// proves: K7
TEST(TorchStore, RefusesWhatTorchCannotDoBeforeAnythingIsSent) {
  const ScriptedTorchServer server({[](ScriptedPeer& peer) {
    peer.hello();
    peer.expect_close();
  }});
  const auto store = connect_to(server);
  const auto code = [](auto call) { return failure_of(call).code; };
  EXPECT_EQ(code([&] { set_one(*store, std::string(max_key_size, 'k'), ""); }),
            Code::invalid_argument);
  EXPECT_EQ(code([&] { set_one(*store, "k", std::string(max_value_size + 1, 'v')); }),
            Code::invalid_argument);
  EXPECT_EQ(code([&] { store->barrier(std::string(max_key_size - 20, 'b'), 2, "0", soon()); }),
            Code::invalid_argument);
  EXPECT_EQ(code([&] { store->wait({"*", true, 1, {}, {}}, soon()); }), Code::invalid_argument);
  EXPECT_EQ(code([&] { store->wait({"a*", true, 1, {}, {"b"}}, soon()); }), Code::invalid_argument);
  const Status watch = failure_of([&] { store->watch("", false, soon()); });
  EXPECT_EQ(watch.code, Code::unsupported);
  EXPECT_THAT(watch.message, HasSubstr("tcpstore://"));
  EXPECT_THAT(watch.message, HasSubstr("use tensorbus://"));
  EXPECT_EQ(code([&] { store->lease(std::chrono::seconds(1), {}, soon()); }), Code::unsupported);
  const Capabilities capabilities = store->capabilities();
  EXPECT_FALSE(capabilities.leases || capabilities.watches || capabilities.server_waits ||
               capabilities.exactly_once);
}

}  // namespace
}  // namespace tensorbus::store
