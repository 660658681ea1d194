#include "store/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorbus::store {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

TimePoint at(int second) { return TimePoint(seconds(second)); }

struct Heard final : Listener {
  std::vector<std::pair<Ticket, std::string>> answers;
  std::vector<StoreEvent> events;
  void answer(Ticket ticket, std::string_view body) override { answers.emplace_back(ticket, body); }
  void event(Ticket, std::string_view event) override {
    Decoder decoder(event);
    events.push_back(decode_event(decoder));
  }
};

class EngineTest : public testing::Test {
 protected:
  void set(const std::string& key, const std::string& value, LeaseId lease = 0) {
    engine.execute(Op::set, set_body(std::vector<Entry>{{key, value}}, lease), at(0));
  }
  void publish(LeaseId lease, const std::string& key, const std::string& value, TimePoint now) {
    Encoder body;
    body.integer(lease).integer(Duration(seconds(10)).count()).integer(std::uint32_t{1});
    engine.execute(Op::publish, body.string(key).string(value).bytes(), now);
  }
  void watch(const std::string& prefix) {
    engine.begin(1, Op::watch, Encoder().string(prefix).integer(std::uint64_t{0}).bytes());
  }
  std::string value(const std::string& key) const {
    const Record* record = engine.table().find(key);
    return record == nullptr ? "(absent)" : record->value;
  }
  std::vector<std::string> event_keys() const {
    std::vector<std::string> keys;
    for (const StoreEvent& event : heard.events) keys.push_back(event.key);
    return keys;
  }

  Heard heard;
  Engine engine{heard};
};

// proves: K9
TEST_F(EngineTest, ALostLeaseIsPublishedAgainWithItsKeys) {
  publish(7, "/a", "1", at(0));
  EXPECT_EQ(value("/a"), "1");
  engine.expire(at(10));
  EXPECT_EQ(value("/a"), "(absent)");
}

// proves: K9
TEST_F(EngineTest, ALeaseThatIsStillKnownIsOnlyRefreshed) {
  publish(7, "/a", "old", at(0));
  set("/a", "newer");
  publish(7, "/a", "old", at(5));
  EXPECT_EQ(value("/a"), "newer");
  engine.expire(at(10));
  EXPECT_EQ(engine.table().leases().size(), 1U);
}

TEST_F(EngineTest, SaysHowLongLeasesHaveLeft) {
  publish(7, "/a", "1", at(0));
  set("/b", "2");
  const std::vector<std::string> keys{"/a", "/b", "/absent"};
  const std::string reply = engine.execute(Op::lease_times, keys_body(keys), at(4));
  Decoder decoder(reply);
  EXPECT_EQ(Duration(decoder.integer<std::int64_t>()), seconds(10));
  EXPECT_EQ(Duration(decoder.integer<std::int64_t>()), seconds(6));
  for (int times = 0; times < 4; ++times) EXPECT_EQ(decoder.integer<std::int64_t>(), -1);
  decoder.end();
}

TEST_F(EngineTest, AWatchSeesItsPrefixAndNoQueues) {
  watch("/w/");
  set("/w/a", "1");
  set("/x", "1");
  engine.execute(Op::push, Encoder().string("/w/q").string("element").bytes(), at(0));
  engine.execute(Op::pop, Encoder().string("/w/q").bytes(), at(0));
  engine.execute(Op::erase, keys_body(std::vector<std::string>{"/w/a"}), at(0));
  EXPECT_THAT(event_keys(), ElementsAre("/w/a", "/w/a"));
  EXPECT_EQ(heard.events.back().kind, StoreEvent::Kind::erase);
  engine.end(1);
  set("/w/b", "1");
  EXPECT_EQ(heard.events.size(), 2U);
}

TEST_F(EngineTest, ABadRequestChangesNothing) {
  const std::string good = set_body(std::vector<Entry>{{"/a", "1"}, {"/b", "2"}}, 0);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(engine.execute(Op::set, good.substr(0, size), at(0)), Error) << size;
  }
  EXPECT_THROW(engine.execute(Op::set, good + "x", at(0)), Error);
  EXPECT_THROW(engine.execute(static_cast<Op>(99), good, at(0)), Error);
  EXPECT_THROW(engine.begin(1, Op::set, good), Error);
  EXPECT_EQ(engine.table().revision(), 0U);
  EXPECT_EQ(engine.blocked(), 0U);
}

// proves: K7
TEST_F(EngineTest, KeysAndValuesHaveLimitsOnTheWireToo) {
  EXPECT_THROW(set(std::string(max_key_size + 1, 'k'), ""), Error);
  EXPECT_THROW(set("/key", std::string(max_value_size + 1, 'v')), Error);
  set(std::string(max_key_size, 'k'), std::string(max_value_size, 'v'));
  EXPECT_EQ(engine.table().records().size(), 1U);
}

TEST_F(EngineTest, AForgedCountIsRefusedBeforeItAllocates) {
  const std::string many = Encoder().integer(std::uint32_t{1000}).raw(std::string(1200, 0)).bytes();
  EXPECT_THROW(engine.execute(Op::get, many, at(0)), Error);
}

// proves: K9
TEST_F(EngineTest, ASnapshotRebuildsTheState) {
  engine.execute(Op::grant,
                 Encoder().integer(LeaseId{3}).integer(Duration(seconds(9)).count()).bytes(),
                 at(0));
  set("/leased", "1", 3);
  set("/plain", "2");
  engine.execute(Op::push, Encoder().string("/q").string("e").bytes(), at(0));
  Heard other_heard;
  Engine other(other_heard);
  engine.snapshot([&](Op op, std::string_view body) { other.execute(op, body, at(100)); });
  EXPECT_EQ(other.table().revision(), engine.table().revision());
  EXPECT_EQ(other.table().find("/leased")->lease, 3U);
  EXPECT_EQ(other.table().find("/plain")->value, "2");
  EXPECT_EQ(other.table().queues().size(), 1U);
  EXPECT_EQ(other.table().next_expiry(), at(109));
  EXPECT_THAT(other_heard.events, IsEmpty());
}

TEST_F(EngineTest, AQueueOfAnySizeIsRestoredFromRequestsOfBoundedSize) {
  // More in all than one part may hold, and one that is alone too large for it.
  const std::vector<std::size_t> sizes{3u << 20, 3u << 20, 10, 7u << 20, 0, 5};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string element(sizes[i], static_cast<char>('a' + i));
    engine.execute(Op::push, Encoder().string("/q").string(element).bytes(), at(0));
  }
  Heard nobody;
  Engine restored{nobody};
  std::size_t parts = 0;
  engine.snapshot([&](Op op, std::string_view body) {
    if (op == Op::restore_queue) {
      ++parts;
      EXPECT_LE(body.size(), max_value_size + 1024);
    }
    restored.execute(op, body, at(0));
  });
  EXPECT_GE(parts, 3U);
  EXPECT_EQ(restored.table().queues(), engine.table().queues());
}

}  // namespace
}  // namespace tensorbus::store
