#include "store/etcd/store.h"

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/clock.h"
#include "base/interrupt.h"
#include "store/common/lease_times.h"
#include "store/testing/etcd_process.h"

namespace tensorbus::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class EtcdStoreTest : public testing::Test {
 protected:
  EtcdProcess server;
  std::unique_ptr<Store> store = server.connect();
  std::unique_ptr<Store> other = server.connect();
};

// proves: K1, K2, K3, K4
TEST_F(EtcdStoreTest, KeepsAnyBytesAndTellsEmptyFromAbsent) {
  std::string every_byte;
  for (int i = 0; i < 256; ++i) every_byte += static_cast<char>(i);
  set(*store, "a/bytes", every_byte);
  set(*store, "a/empty", "");
  EXPECT_EQ(get(*other, "a/bytes"), every_byte);
  EXPECT_EQ(get(*other, "a/empty"), "");
  EXPECT_EQ(get(*other, "a/absent"), std::nullopt);
  EXPECT_TRUE(other->exists("a/empty", soon()));
  EXPECT_FALSE(other->exists("a/absent", soon()));
  EXPECT_THAT(other->list("a/", soon()), ElementsAre("a/bytes", "a/empty"));
  EXPECT_THAT(other->list("", soon()), ElementsAre("a/bytes", "a/empty"));
  EXPECT_TRUE(other->erase("a/empty", soon()));
  EXPECT_FALSE(other->erase("a/empty", soon()));
  EXPECT_FALSE(store->exists("a/empty", soon()));
}

// proves: K1
TEST_F(EtcdStoreTest, AddsAndSwapsAtomicallyAmongThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Store& mine = t % 2 == 0 ? *store : *other;
      for (int i = 0; i < 10; ++i) mine.add("sum", 3, soon());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(get(*store, "sum"), "120");
  EXPECT_EQ(store->add("sum", -121, soon()), -1);

  EXPECT_TRUE(store->compare_and_set("k", std::nullopt, "one", soon()).swapped);
  const Swap refused = other->compare_and_set("k", std::nullopt, "two", soon());
  EXPECT_FALSE(refused.swapped);
  EXPECT_EQ(refused.value, "one");
  const Swap done = other->compare_and_set("k", "one", "two", soon());
  EXPECT_TRUE(done.swapped);
  EXPECT_EQ(done.value, "two");
  EXPECT_EQ(store->compare_and_set("none", "x", "y", soon()).value, std::nullopt);
  EXPECT_EQ(status_of([&] { store->add("k", 1, soon()); }).code, Code::invalid_argument);
}

// proves: K1, K5
TEST_F(EtcdStoreTest, ManyEntriesChangeAtOneMoment) {
  for (const std::size_t count : {127, 128, 129, 1000, 4000}) {
    std::vector<Entry> entries;
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < count; ++i) {
      keys.push_back("many/" + std::to_string(i));
      entries.push_back({keys.back(), std::to_string(count + i)});
    }
    const auto watch = other->watch("many/", false, soon());
    store->set(entries, soon());
    const auto values = other->get(keys, soon());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], entries[i].value);
    const std::uint64_t revision = watch->next(soon()).revision;
    for (std::size_t i = 1; i < count; ++i) ASSERT_EQ(watch->next(soon()).revision, revision);
  }
  EXPECT_EQ(status_of([&] { store->set(std::vector<Entry>(4001), soon()); }).code,
            Code::invalid_argument);
  // The last of two entries for one key counts.
  store->set(std::vector<Entry>{{"twice", "1"}, {"twice", "2"}}, soon());
  EXPECT_EQ(get(*store, "twice"), "2");
}

// proves: K7
TEST_F(EtcdStoreTest, TakesTheLargestValueAndRefusesLargerOnes) {
  const std::size_t largest = store->capabilities().max_value_size;
  EXPECT_EQ(largest, 1'500'000U);
  const std::string longest_key(max_key_size - 1, 'k');
  const std::string value(largest, 'v');
  set(*store, longest_key, value);
  EXPECT_EQ(get(*other, longest_key), value);
  EXPECT_TRUE(
      store->compare_and_set(longest_key, value, std::string(largest, 'w'), soon()).swapped);
  EXPECT_EQ(status_of([&] { set(*store, "k", value + "v"); }).code, Code::invalid_argument);
  EXPECT_EQ(status_of([&] { set(*store, longest_key + "k", ""); }).code, Code::invalid_argument);
  EXPECT_EQ(status_of([&] { set(*store, "", ""); }).code, Code::invalid_argument);
  const std::vector<Entry> together{{"a", value}, {"b", value}};
  EXPECT_EQ(status_of([&] { store->set(together, soon()); }).code, Code::invalid_argument);
  EXPECT_FALSE(store->exists("a", soon()));
  std::vector<std::string> keys(2, longest_key);
  for (const auto& got : store->get(keys, soon())) EXPECT_EQ(got->size(), largest);
}

// proves: K5
TEST_F(EtcdStoreTest, WaitEndsWhenTheConditionHolds) {
  set(*store, "r/2", "ready");
  auto waiting =
      std::async(std::launch::async, [&] { return other->wait(pattern("r/[0-9]", 2), soon()); });
  set(*store, "r/x", "ready");
  EXPECT_EQ(waiting.wait_for(milliseconds(100)), std::future_status::timeout);
  set(*store, "r/1", "ready");
  EXPECT_THAT(waiting.get().keys, ElementsAre("r/1", "r/2"));
  // Sorted and cut to the count.
  EXPECT_THAT(store->wait(pattern("r/*", 1), soon()).keys, ElementsAre("r/1"));
  EXPECT_EQ(store->wait(key("r/2"), soon()).value, "ready");

  Condition done = key("r/2");
  done.value = "done";
  auto value = std::async(std::launch::async, [&] { return other->wait(done, soon()); });
  set(*store, "r/2", "almost");
  EXPECT_EQ(value.wait_for(milliseconds(100)), std::future_status::timeout);
  set(*store, "r/2", "done");
  EXPECT_EQ(value.get().value, "done");
}

// proves: K5
TEST_F(EtcdStoreTest, WaitSeesOneRevisionAtATime) {
  // At no moment are both there: each change removes one and sets the other.
  set(*store, "flip/a", "");
  auto waiting = std::async(std::launch::async, [&] {
    return status_of([&] { other->wait(pattern("flip/*", 2), within(milliseconds(1500))); });
  });
  for (int i = 0; i < 50; ++i) {
    const char* gone = i % 2 == 0 ? "flip/a" : "flip/b";
    const char* come = i % 2 == 0 ? "flip/b" : "flip/a";
    // In this order the events of one revision pass through a state that never was.
    server.post("/v3/kv/txn", {{"success", {etcd::put(come, ""), etcd::erase(gone)}}});
  }
  const Status status = waiting.get();
  EXPECT_EQ(status.code, Code::timeout);
  EXPECT_THAT(status.message, HasSubstr("1 of 2 keys matching \"flip/*\""));
}

// proves: K5, K8
TEST_F(EtcdStoreTest, ATimeoutIsNeverEarlyAndNamesWhatIsMissing) {
  set(*store, "c/0", "");
  Condition condition = pattern("c/*", 3);
  condition.candidates = {"c/0", "c/1", "c/2"};
  const TimePoint start = now();
  const Status status = status_of([&] { store->wait(condition, within(milliseconds(300))); });
  EXPECT_GE(now() - start, milliseconds(300));
  EXPECT_EQ(status.code, Code::timeout);
  EXPECT_THAT(status.message, AllOf(HasSubstr("1 of 3 keys"), HasSubstr("missing: c/1, c/2")));
  EXPECT_THAT(status_of([&] { store->wait(key("c/9"), within(milliseconds(50))); }).message,
              HasSubstr("missing: \"c/9\""));
}

std::atomic<bool> pressed = false;

// proves: K8
TEST_F(EtcdStoreTest, BlockedCallsEndOnCancelCloseAndCtrlC) {
  Cancellation cancellation;
  auto cancelled = std::async(std::launch::async, [&] {
    return status_of([&] { store->wait(key("never"), Deadline::never(), &cancellation); });
  });
  auto in_barrier = std::async(std::launch::async, [&] {
    return status_of([&] { store->barrier("b", 2, "0", Deadline::never(), &cancellation); });
  });
  EXPECT_EQ(cancelled.wait_for(milliseconds(200)), std::future_status::timeout);
  cancellation.cancel();
  EXPECT_EQ(cancelled.get().code, Code::cancelled);
  EXPECT_EQ(in_barrier.get().code, Code::cancelled);

  set_interrupt_check([] { return pressed.load(); });
  auto interrupted = std::async(std::launch::async, [&] {
    return status_of([&] { store->wait(key("never"), Deadline::never()); });
  });
  EXPECT_EQ(interrupted.wait_for(milliseconds(200)), std::future_status::timeout);
  pressed = true;
  EXPECT_EQ(interrupted.get().code, Code::interrupted);
  pressed = false;
  set_interrupt_check(nullptr);

  const auto watch = store->watch("", false, soon());
  std::vector<std::future<Status>> blocked;
  blocked.push_back(std::async(std::launch::async, [&] {
    return status_of([&] { store->wait(key("never"), Deadline::never()); });
  }));
  blocked.push_back(std::async(std::launch::async, [&] {
    return status_of([&] { store->barrier("b", 2, "0", Deadline::never()); });
  }));
  blocked.push_back(std::async(std::launch::async,
                               [&] { return status_of([&] { watch->next(Deadline::never()); }); }));
  EXPECT_EQ(blocked.front().wait_for(milliseconds(200)), std::future_status::timeout);
  store->close(false);
  for (auto& call : blocked) EXPECT_EQ(call.get().code, Code::cancelled);
  EXPECT_EQ(status_of([&] { get(*store, "x"); }).code, Code::cancelled);
}

// proves: K5
TEST_F(EtcdStoreTest, BarrierReleasesExactlyItsCountAndCanBeUsedAgain) {
  std::atomic<int> inside = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Store& mine = rank % 2 == 0 ? *store : *other;
      for (int round = 1; round <= 5; ++round) {
        ++inside;
        mine.barrier("steps", 4, std::to_string(rank), soon());
        EXPECT_GE(inside, round * 4);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A third caller waits for a partner of its own.
  std::vector<std::future<Status>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(std::async(std::launch::async, [&] {
      return status_of([&] { store->barrier("pairs", 2, "", within(milliseconds(1000))); });
    }));
  }
  int released = 0;
  for (auto& call : calls) released += call.get().ok();
  EXPECT_EQ(released, 2);
}

// proves: K5
TEST_F(EtcdStoreTest, ABarrierThatTimesOutSaysWhoIsMissing) {
  auto first = std::async(std::launch::async, [&] {
    return status_of([&] { other->barrier("b", 4, "2", within(milliseconds(400))); });
  });
  const Status status = status_of([&] { store->barrier("b", 4, "0", within(milliseconds(400))); });
  EXPECT_EQ(status.code, Code::timeout);
  EXPECT_THAT(status.message, HasSubstr("missing: rank 1"));
  EXPECT_EQ(first.get().code, Code::timeout);
  // Who withdrew is not counted.
  EXPECT_THAT(status_of([&] { store->barrier("b", 2, "zero", within(milliseconds(100))); }).message,
              HasSubstr("1 of 2 arrived: zero"));
}

// proves: K5
TEST_F(EtcdStoreTest, WatchSeesEveryChangeFromItsCallOn) {
  set(*store, "w/old", "0");
  set(*store, "elsewhere", "");
  const auto watch = other->watch("w/", true, soon());
  const auto later = other->watch("w/", false, soon());
  set(*store, "w/new", "1");
  set(*store, "w/new", "2");
  set(*store, "elsewhere", "");
  store->erase("w/old", soon());
  using Kind = StoreEvent::Kind;
  const auto next_is = [](Watch& from, Kind kind, const std::string& name,
                          const std::string& value) {
    const StoreEvent event = from.next(soon());
    EXPECT_EQ(event.kind, kind);
    EXPECT_EQ(event.key, name);
    EXPECT_EQ(event.value, value);
    return event.revision;
  };
  next_is(*watch, Kind::put, "w/old", "0");
  for (Watch* from : {watch.get(), later.get()}) {
    const auto first = next_is(*from, Kind::put, "w/new", "1");
    const auto second = next_is(*from, Kind::put, "w/new", "2");
    const auto third = next_is(*from, Kind::erase, "w/old", "");
    EXPECT_LT(first, second);
    EXPECT_LT(second, third);
    EXPECT_EQ(status_of([&] { from->next(within(milliseconds(50))); }).code, Code::timeout);
  }
  set(*store, "w/new", "3");
  next_is(*watch, Kind::put, "w/new", "3");
  watch->close();
  EXPECT_EQ(status_of([&] { watch->next(soon()); }).code, Code::cancelled);
}

TEST_F(EtcdStoreTest, SaysHowLongLeasesHaveLeft) {
  const auto kept = store->lease(seconds(30), {}, soon());
  const auto left_alone = store->lease(seconds(3), {.keep_alive = false}, soon());
  set(*store, "kept", "", kept.get());
  set(*store, "too", "", kept.get());
  set(*store, "left alone", "", left_alone.get());
  set(*store, "free", "");
  auto& asked = dynamic_cast<LeaseTimes&>(*other);
  const std::vector<std::string> keys{"free", "kept", "absent", "left alone", "too"};
  const auto times = asked.lease_times(keys, soon());
  ASSERT_EQ(times.size(), keys.size());
  EXPECT_FALSE(times[0]);
  EXPECT_FALSE(times[2]);
  ASSERT_TRUE(times[1] && times[3]);
  EXPECT_EQ(times[4], times[1]);
  EXPECT_EQ(times[1]->time_to_live, seconds(30));
  EXPECT_GE(times[1]->left, seconds(29));
  EXPECT_LE(times[1]->left, seconds(30));
  EXPECT_EQ(times[3]->time_to_live, seconds(3));
  // Nobody renews it: there is less and less left, and then nothing.
  Duration left = times[3]->left;
  const Deadline deadline = soon();
  while (const auto now = asked.lease_times(std::span(&keys[3], 1), soon()).front()) {
    ASSERT_FALSE(deadline.expired());
    EXPECT_LE(now->left, left);
    left = now->left;
    std::this_thread::sleep_for(milliseconds(100));
  }
}

// proves: K6
TEST_F(EtcdStoreTest, LeasedKeysLiveAsLongAsTheirLease) {
  const auto kept = store->lease(milliseconds(600), {}, soon());
  EXPECT_EQ(kept->time_to_live(), seconds(1));
  const auto loose = store->lease(seconds(1), {.keep_alive = false}, soon());
  set(*store, "l/kept", "", kept.get());
  set(*store, "l/loose", "", loose.get());
  set(*store, "l/plain", "");
  const auto watch = other->watch("l/", false, soon());
  const StoreEvent lapsed = watch->next(soon());
  EXPECT_EQ(lapsed.key, "l/loose");
  EXPECT_EQ(lapsed.kind, StoreEvent::Kind::erase);
  EXPECT_FALSE(loose->alive());
  EXPECT_TRUE(kept->alive());
  const Status dead = status_of([&] { set(*store, "l/loose", "", loose.get()); });
  EXPECT_EQ(dead.code, Code::failed);
  EXPECT_THAT(dead.message, HasSubstr("lapsed"));
  EXPECT_EQ(status_of([&] { loose->refresh(soon()); }).code, Code::failed);
  EXPECT_EQ(status_of([&] { set(*other, "x", "", kept.get()); }).code, Code::invalid_argument);

  kept->revoke(soon());
  EXPECT_EQ(watch->next(soon()).key, "l/kept");
  EXPECT_FALSE(kept->alive());
  const auto last = store->lease(seconds(30), {}, soon());
  set(*store, "l/last", "", last.get());
  EXPECT_EQ(watch->next(soon()).key, "l/last");
  store->close(true);
  EXPECT_EQ(watch->next(soon()).kind, StoreEvent::Kind::erase);
  EXPECT_THAT(other->list("l/", soon()), ElementsAre("l/plain"));
}

// proves: K6
TEST_F(EtcdStoreTest, AClosedStoreLeavesNoMarkersBehind) {
  set(*store, "k", "");
  store->close(false);
  const auto left = etcd::key_values(
      server.post("/v3/kv/range", etcd::range_fields(etcd::KeyRange::prefix(etcd::own_prefix))));
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].key, etcd::own_key("data_id"));
}

}  // namespace
}  // namespace tensorbus::store
