// The directory as it is, on a store that fails at every step.
#include "bus/directory/store_directory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/clock.h"
#include "bus/simulation/faulty_store.h"
#include "os/io/poll.h"

namespace tensorbus::bus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Call = FaultyStore::Call;
using Fault = FaultyStore::Fault;

const std::string prefix = KeyScope("test", "bus").prefix();

StoreDirectoryOptions quick() {
  StoreDirectoryOptions options;
  options.space = "test";
  options.one_try = milliseconds(5);
  options.between_tries = milliseconds(1);
  options.look_at_lease_every = milliseconds(1);
  return options;
}

// Publishes as an agent does: all of it again, under another incarnation, when its lease is lost.
class Owner {
 public:
  explicit Owner(const std::shared_ptr<FaultyStore>& store)
      : store_(store), directory_(make_store_directory(store, quick())) {}

  void publish(const std::string& key) {
    wanted_.insert(key);
    withdrawn_.erase(key);
    directory_->publish(key, value_of(key));
  }
  void withdraw(const std::string& key) {
    wanted_.erase(key);
    withdrawn_.insert(key);
    directory_->withdraw(key);
  }
  void swap(std::optional<std::string> from, const std::string& to) {
    directory_->compare_and_set("counter", std::move(from), to, ++last_request_);
  }

  // Until everything is done and known, and nothing is left of what should not be.
  bool settles() {
    const Deadline deadline = Deadline::after(seconds(20));
    while (!settled()) {
      if (deadline.expired()) return false;
      pollfd descriptor{directory_->fd(), POLLIN, 0};
      os::sleep_ready(std::span(&descriptor, 1),
                      sooner(deadline, Deadline::after(milliseconds(1))));
      for (const DirectoryEvent& event : directory_->poll()) take(event);
    }
    return true;
  }

  const std::map<std::uint64_t, int>& answers() const { return answers_; }
  // A value that was set after the loss of its incarnation was told.
  std::string stale() {
    const std::vector<std::string> done = store_->done();
    for (const auto& [from, incarnation] : told_) {
      for (std::size_t at = from; at < done.size(); ++at) {
        const std::size_t value = done[at].find('#');
        if (done[at].starts_with("set ") && std::stoul(done[at].substr(value + 1)) < incarnation) {
          return done[at];
        }
      }
    }
    return "";
  }
  std::string describe() {
    std::string text = fmt::format("{} of {} losses told, incarnation {}; ", told_.size(),
                                   store_->lapses(), incarnation_);
    for (const auto& [key, value] : store_->contents()) text += key + "=" + value + " ";
    text += "; known ";
    for (const auto& [key, value] : known_) text += key + "=" + value + " ";
    return text;
  }

 private:
  std::string value_of(const std::string& key) const {
    return fmt::format("{}#{}", key, incarnation_);
  }

  void take(const DirectoryEvent& event) {
    if (const auto* changed = std::get_if<Changed>(&event)) {
      if (changed->value) {
        known_[prefix + changed->key] = *changed->value;
      } else {
        known_.erase(prefix + changed->key);
      }
    } else if (const auto* swapped = std::get_if<Swapped>(&event)) {
      answers_[swapped->request] += swapped->swapped ? 1 : 1000;
    } else if (std::holds_alternative<LeaseLost>(event)) {
      told_.emplace_back(store_->done().size(), ++incarnation_);
      for (const std::string& key : wanted_) directory_->publish(key, value_of(key));
    } else if (const auto* reachable = std::get_if<Reachable>(&event)) {
      reachable_ = reachable->status.ok();
    }
  }

  bool settled() {
    const auto contents = store_->contents();
    for (const std::string& key : wanted_) {
      const auto found = contents.find(prefix + key);
      if (found == contents.end() || found->second != value_of(key)) return false;
    }
    for (const std::string& key : withdrawn_) {
      if (contents.contains(prefix + key)) return false;
    }
    return contents == known_ && answers_.size() == last_request_ && reachable_ &&
           told_.size() == store_->lapses();
  }

  const std::shared_ptr<FaultyStore> store_;
  std::unique_ptr<Directory> directory_;
  std::set<std::string> wanted_;
  std::set<std::string> withdrawn_;
  std::map<std::string, std::string> known_;
  std::map<std::uint64_t, int> answers_;  // 1: swapped, once
  std::vector<std::pair<std::size_t, std::uint64_t>> told_;
  std::uint64_t incarnation_ = 0;
  std::uint64_t last_request_ = 0;
  bool reachable_ = true;
};

void expect_all_is_done(const std::shared_ptr<FaultyStore>& store) {
  auto owner = std::make_unique<Owner>(store);
  store->put(prefix + "other", "first");
  owner->publish("agent");
  owner->publish("pair");
  owner->swap(std::nullopt, "one");
  owner->publish("batch");
  owner->withdraw("pair");
  owner->swap("one", "two");
  ASSERT_TRUE(owner->settles()) << owner->describe();
  store->put(prefix + "other", "second");
  store->put(prefix + "late", "first");
  owner->publish("pair");
  owner->swap("two", "three");
  store->remove(prefix + "other");
  owner->withdraw("batch");
  ASSERT_TRUE(owner->settles()) << owner->describe();
  const auto expected = std::map<std::uint64_t, int>{{1, 1}, {2, 1}, {3, 1}};
  EXPECT_EQ(owner->answers(), expected);
  EXPECT_EQ(owner->stale(), "");
  owner.reset();
}

std::vector<std::string> swaps(FaultyStore& store) {
  std::vector<std::string> found = store.done();
  std::erase_if(found, [](const std::string& each) { return !each.starts_with("swap"); });
  return found;
}
std::vector<std::string> without_repetitions(std::vector<std::string> done) {
  done.erase(std::unique(done.begin(), done.end()), done.end());
  return done;
}
std::string local(std::string text) {
  for (auto at = text.find(prefix); at != std::string::npos; at = text.find(prefix)) {
    text.erase(at, prefix.size());
  }
  return text;
}

constexpr std::size_t most_calls_of_a_kind = 8;

TEST(StoreDirectory, EveryFaultAtEveryCallIsOvercome) {
  for (int call = 0; call <= static_cast<int>(FaultyStore::last_call); ++call) {
    for (std::size_t at = 0; at < most_calls_of_a_kind; ++at) {
      for (int fault = 0; fault <= static_cast<int>(FaultyStore::last_fault); ++fault) {
        SCOPED_TRACE(fmt::format("fault {} at call {} of kind {}", fault, at, call));
        const auto store = std::make_shared<FaultyStore>();
        store->plan(static_cast<Call>(call), at, static_cast<Fault>(fault));
        expect_all_is_done(store);
        EXPECT_THAT(swaps(*store), testing::ElementsAre("swap " + prefix + "counter=one",
                                                        "swap " + prefix + "counter=two",
                                                        "swap " + prefix + "counter=three"));
        if (store->lapses() > 0) continue;
        std::vector<std::string> done = without_repetitions(store->done());
        std::ranges::transform(done, done.begin(), local);
        EXPECT_THAT(done,
                    testing::ElementsAre("set agent=agent#0", "set pair=pair#0", "swap counter=one",
                                         "set batch=batch#0", "erase pair", "swap counter=two",
                                         "set pair=pair#0", "swap counter=three", "erase batch"));
      }
    }
  }
}

TEST(StoreDirectory, ManyFaultsAreOvercome) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t end) { return std::size_t{random()} % end; };
    const auto store = std::make_shared<FaultyStore>();
    for (int i = 0; i < 30; ++i) {
      store->plan(static_cast<Call>(below(static_cast<std::size_t>(FaultyStore::last_call))),
                  below(20),
                  static_cast<Fault>(below(static_cast<std::size_t>(FaultyStore::last_fault) + 1)));
    }
    expect_all_is_done(store);
  }
}

// The last word on a key decides, also when an earlier one was never said.
TEST(StoreDirectory, WhatWaitsWhenTheLeaseIsLostIsNotPublishedAnyMore) {
  const auto store = std::make_shared<FaultyStore>();
  auto directory = make_store_directory(store, quick());
  directory->publish("first", "#0");
  while (!store->contents().contains(prefix + "first")) std::this_thread::yield();
  store->plan(Call::set, 1, Fault::outage);
  for (int i = 0; i < 5; ++i) directory->publish(fmt::format("stale{}", i), "#0");
  const Deadline deadline = Deadline::after(seconds(20));
  bool lost = false;
  while (!lost && !deadline.expired()) {
    pollfd descriptor{directory->fd(), POLLIN, 0};
    if (!os::wait_ready(std::span(&descriptor, 1), deadline)) break;
    directory->publish("unaware", "#0");
    for (const DirectoryEvent& event : directory->poll()) {
      lost = lost || std::holds_alternative<LeaseLost>(event);
    }
  }
  ASSERT_TRUE(lost);
  directory->publish("fresh", "#1");
  while (!store->contents().contains(prefix + "fresh") && !deadline.expired()) {
    std::this_thread::yield();
  }
  EXPECT_THAT(store->contents(), testing::ElementsAre(testing::Pair(prefix + "fresh", "#1")));
}

// All agents are told of every write: a store that is late would be later still.
TEST(StoreDirectory, WhatTheStoreTookWithoutAnAnswerIsNotWrittenAgain) {
  for (const Fault fault : {Fault::late, Fault::forget}) {
    const auto store = std::make_shared<FaultyStore>();
    store->plan(Call::set, 0, fault);
    const auto directory = make_store_directory(store, quick());
    directory->publish("list", "long");
    directory->publish("last", "x");
    const Deadline deadline = Deadline::after(seconds(20));
    while (!store->contents().contains(prefix + "last") && !deadline.expired()) {
      std::this_thread::yield();
    }
    EXPECT_THAT(store->done(),
                testing::ElementsAre("set " + prefix + "list=long", "set " + prefix + "last=x"));
  }
}

// A loop that woke up for every one of them would step ranks x ranks times when all ranks register.
TEST(StoreDirectory, WhatHasGatheredIsToldAtOnce) {
  const auto store = std::make_shared<FaultyStore>();
  for (int i = 0; i < 100; ++i) store->put(fmt::format("{}key{:02}", prefix, i), "x");
  const auto directory = make_store_directory(store, quick());
  pollfd descriptor{directory->fd(), POLLIN, 0};
  ASSERT_TRUE(os::wait_ready(std::span(&descriptor, 1), Deadline::after(seconds(20))));
  EXPECT_EQ(directory->poll().size(), 100u);
  EXPECT_TRUE(directory->arm());
}

TEST(StoreDirectory, ARecordThatTheStoreNeverTakesIsToldAndHoldsUpNothing) {
  const auto store = std::make_shared<FaultyStore>();
  const auto directory = make_store_directory(store, quick());
  directory->publish("large", std::string(max_value_size + 1, 'x'));
  directory->publish("small", "x");
  std::string refused;
  const Deadline deadline = Deadline::after(seconds(20));
  while ((refused.empty() || !store->contents().contains(prefix + "small")) &&
         !deadline.expired()) {
    for (const DirectoryEvent& event : directory->poll()) {
      if (const auto* told = std::get_if<Refused>(&event)) refused = told->key;
    }
    std::this_thread::yield();
  }
  EXPECT_EQ(refused, "large");
  EXPECT_TRUE(store->contents().contains(prefix + "small"));
}

// However much waits: 200 requests at this pace would take ten seconds.
TEST(StoreDirectory, ItEndsInBoundedTimeOnASlowStore) {
  const auto store = std::make_shared<FaultyStore>();
  StoreDirectoryOptions options = quick();
  options.one_try = milliseconds(100);
  auto directory = make_store_directory(store, options);
  store->slow_down(milliseconds(50));
  for (int i = 0; i < 200; ++i) directory->publish(fmt::format("key{}", i), "x");
  const TimePoint before = now();
  directory.reset();
  EXPECT_LT(now() - before, seconds(5));
}

TEST(StoreDirectory, ItEndsInBoundedTimeOnAStoreThatIsSilent) {
  const auto store = std::make_shared<FaultyStore>();
  StoreDirectoryOptions options = quick();
  options.one_try = milliseconds(100);
  auto directory = make_store_directory(store, options);
  directory->publish("first", "x");
  while (!store->contents().contains(prefix + "first")) std::this_thread::yield();
  store->stall_for_ever();
  for (int i = 0; i < 200; ++i) directory->publish(fmt::format("key{}", i), "x");
  const TimePoint before = now();
  directory.reset();
  EXPECT_LT(now() - before, seconds(5));
}

}  // namespace
}  // namespace tensorbus::bus
