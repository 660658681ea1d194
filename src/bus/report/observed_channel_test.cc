#include "bus/report/observed_channel.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bus/report/reporter.h"
#include "observe/openmetrics.h"

namespace tensorbus::bus {
namespace {

// Passes on what a test submits and keeps what is completed.
class ScriptedChannel final : public Channel {
 public:
  std::span<const ChannelEvent> poll() override {
    polled_ = std::exchange(events, {});
    return polled_;
  }
  void complete(CommandId id, const Outcome&) override { completed.push_back(id); }
  void fail(const Status&) noexcept override {}
  void progress(CommandId, std::int64_t done, std::int64_t) noexcept override { told = done; }
  bool arm() override { return true; }
  int fd() const noexcept override { return -1; }

  std::vector<ChannelEvent> events;
  std::vector<CommandId> completed;
  std::int64_t told = 0;

 private:
  std::vector<ChannelEvent> polled_;
};

class ShownDirectory final : public Directory {
 public:
  void publish(std::string, std::string) override {}
  void withdraw(std::string) override {}
  void show(std::string key, std::string value) override { shown.emplace_back(key, value); }
  void compare_and_set(std::string, std::optional<std::string>, std::string,
                       std::uint64_t) override {}
  std::span<const DirectoryEvent> poll() override { return {}; }
  bool arm() override { return true; }
  int fd() const noexcept override { return -1; }

  std::vector<std::pair<std::string, std::string>> shown;
};

class ObservedChannelTest : public testing::Test {
 protected:
  CommandId submit(Command command) {
    const CommandId id{1, ++sequence_};
    inner_.events.push_back(Submission{id, std::move(command), Deadline::never(), nullptr});
    channel_.poll();
    return id;
  }
  void register_batch(const std::string& batch, const std::string& side) {
    RegisterBatch command;
    command.batch = batch;
    command.role = side;
    command.pairs = {"pair"};
    command.items.push_back({"pair", "w", Dtype::float32, {10, 10}, {10, 1}, std::nullopt});
    channel_.complete(submit(command), {});
  }
  std::size_t moved() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        channel_.registered(), [](const auto& each) { return each.second.last.has_value(); }));
  }
  Outcome outcome(std::int64_t version) {
    Outcome outcome;
    outcome.version = version;
    return outcome;
  }
  observe::Span last_span() {
    auto spans = recorder_.spans().after(seen_);
    EXPECT_FALSE(spans.empty());
    return spans.empty() ? observe::Span() : spans.back();
  }
  std::string metrics() {
    observe::Families families;
    recorder_.collect(families);
    return observe::to_text(families, observe::TextFormat::prometheus);
  }
  AgentStatus tell(TimePoint at, const Awaited& awaited = {}) {
    EXPECT_TRUE(reporter_.due(at));
    reporter_.tell(at, directory_, [&](const BatchSide&) { return awaited; });
    return decode_status(directory_.shown.back().second);
  }

  ScriptedChannel inner_;
  observe::Recorder recorder_{{}};
  ObservedChannel channel_{inner_, recorder_, 3};
  Reporter reporter_{channel_, {3, true}};
  ShownDirectory directory_;

 private:
  std::uint64_t sequence_ = 0;
  std::uint64_t seen_ = 0;
};

// proves: O1.1, O1.2
TEST_F(ObservedChannelTest, APullIsASpanWithItsPhasesAndPeers) {
  const CommandId id = submit(Pull{"shelf of trainer/policy", "rollout"});
  EXPECT_EQ(recorder_.commands.value(), 1U);
  Outcome done = outcome(8);
  done.bytes_by_path = {{"mapped", 600}, {"packed", 400}};
  done.timing = {50, 20, 10, {0, 2}, 2};
  channel_.complete(id, done);
  const observe::Span span = last_span();
  EXPECT_EQ(span.work, observe::Work::pull);
  EXPECT_EQ(span.rank, 3);
  EXPECT_EQ(span.name.view(), "policy");
  EXPECT_EQ(span.side.view(), "rollout");
  EXPECT_EQ(span.version, 8);
  EXPECT_EQ(span.bytes, 1000);
  EXPECT_EQ(span.slowest, 2);
  EXPECT_EQ(std::vector(span.named_peers().begin(), span.named_peers().end()),
            (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(span.in(observe::Phase::read), 50);
  EXPECT_EQ(span.in(observe::Phase::commit), 10);
  EXPECT_EQ(inner_.completed, std::vector{id});
  EXPECT_EQ(recorder_.commands.value(), 0U);
  EXPECT_NE(metrics().find("tensorbus_read_bytes_total{path=\"packed\"} 400\n"), std::string::npos);
}

TEST_F(ObservedChannelTest, APublishIsOneSpanOfTwoCommands) {
  register_batch("shelf of trainer/policy", "trainer");
  const CommandId asked = submit(Publish{"shelf of trainer/policy", "trainer", {}});
  channel_.complete(asked, outcome(5));
  EXPECT_EQ(last_span().work, observe::Work::registration);
  const CommandId filled = submit(Shelve{"shelf of trainer/policy", "trainer", 5});
  channel_.complete(filled, {});
  const observe::Span span = last_span();
  EXPECT_EQ(span.work, observe::Work::publish);
  EXPECT_EQ(span.version, 5);
  EXPECT_EQ(span.bytes, 400);
  EXPECT_GT(span.in(observe::Phase::stage), 0);
  EXPECT_NE(metrics().find("tensorbus_operations_total{operation=\"publish\",outcome=\"ok\"} 1\n"),
            std::string::npos);
}

TEST_F(ObservedChannelTest, APublishThatGetsNoSlotHasItsOutcome) {
  Outcome late;
  late.status = {Code::timeout, "rank 1 lags"};
  channel_.complete(submit(Publish{"b", "trainer", {}}), late);
  EXPECT_EQ(last_span().code, Code::timeout);
  EXPECT_EQ(moved(), 0U);
}

TEST_F(ObservedChannelTest, ABatchThatIsClosedIsForgotten) {
  register_batch("b", "trainer");
  channel_.complete(submit(Transfer{"b", Direction::send, "trainer"}), outcome(4));
  submit(CloseBatch{"b", 1, true});
  EXPECT_EQ(moved(), 1U);
  submit(CloseBatch{"b", 1});
  EXPECT_EQ(moved(), 0U);
}

TEST_F(ObservedChannelTest, WhatASessionHasDoneGoesWithIt) {
  register_batch("b", "rollout");
  channel_.complete(submit(Pull{"b", "rollout"}), outcome(2));
  EXPECT_EQ(moved(), 1U);
  submit(Pull{"b", "rollout"});
  inner_.events.push_back(SessionLost{1, {Code::peer_lost, "died"}});
  channel_.poll();
  EXPECT_TRUE(channel_.running().empty());
  EXPECT_TRUE(channel_.registered().empty());
  EXPECT_EQ(recorder_.commands.value(), 0U);
}

TEST_F(ObservedChannelTest, AWorkerThatDoesNotSayItsSideIsAtThatOfItsPair) {
  InitPair pair{"pair", "trainer", "engine", 2, std::nullopt};
  channel_.complete(submit(pair), {});
  RegisterBatch batch;
  batch.batch = "b";
  batch.items.push_back({"pair", "", Dtype::float32, {10}, {1}, std::nullopt});
  channel_.complete(submit(batch), {});
  channel_.complete(submit(Transfer{"b", Direction::send, std::nullopt}), outcome(0));
  const AgentStatus status = tell(TimePoint{std::chrono::hours(1)});
  ASSERT_EQ(status.batches.size(), 1U);
  EXPECT_EQ(status.batches.front().side, "trainer");
  EXPECT_EQ(status.batches.front().world_size, 2);
}

// proves: O4.1
TEST_F(ObservedChannelTest, WaitingForAPairIsSeen) {
  submit(InitPair{"pair", "trainer", "engine", 2, std::nullopt});
  const AgentStatus status = tell(TimePoint{std::chrono::hours(1)}, {"rank 1 of 2", {}});
  ASSERT_EQ(status.batches.size(), 1U);
  EXPECT_EQ(status.batches.front().work, "init_pair");
  EXPECT_EQ(status.batches.front().waits, "rank 1 of 2");
}

// proves: O1.3
TEST_F(ObservedChannelTest, ProgressIsPassedOnAndKept) {
  const CommandId id = submit(Pull{"b", "rollout"});
  channel_.progress(id, 30, 90);
  EXPECT_EQ(inner_.told, 30);
  EXPECT_EQ(channel_.running().at(id).bytes_total, 90);
}

// proves: O4.1
TEST_F(ObservedChannelTest, AReportSaysWhoIsWaitedFor) {
  const TimePoint start{std::chrono::hours(1)};
  submit(Pull{"shelf of trainer/policy", "rollout"});
  const AgentStatus status = tell(start, {"a version above 7", {0, 1}});
  EXPECT_EQ(directory_.shown.back().first, "agents/3");
  EXPECT_EQ(status.rank, 3);
  EXPECT_TRUE(status.embedded);
  ASSERT_EQ(status.batches.size(), 1U);
  const BatchStatus& batch = status.batches.front();
  EXPECT_EQ(batch.side, "rollout");
  EXPECT_EQ(batch.work, "pull");
  EXPECT_EQ(batch.waits, "a version above 7");
  EXPECT_EQ(batch.awaited, (std::vector<Rank>{0, 1}));
  EXPECT_NE(batch.since, 0);
}

// proves: O4.1
TEST_F(ObservedChannelTest, AReportSaysWhatIsReadBesideWhatWasReadLast) {
  TimePoint at{std::chrono::hours(1)};
  register_batch("b", "rollout");
  Outcome done = outcome(7);
  done.timing.sources = {5};
  channel_.complete(submit(Pull{"b", "rollout"}), done);
  const CommandId id = submit(Pull{"b", "rollout"});
  channel_.progress(id, 62, 100);
  const AgentStatus reads = tell(at, {"bytes", {}, BeingRead{8, {0, 1}}});
  EXPECT_EQ(reads.batches.front().version, 7);
  EXPECT_EQ(reads.batches.front().reads, 8);
  EXPECT_EQ(reads.batches.front().from, (std::vector<Rank>{0, 1}));
  EXPECT_EQ(reads.batches.front().bytes_done, 62);
  const AgentStatus waits = tell(at + std::chrono::seconds(2), {"other ranks", {4}});
  EXPECT_EQ(waits.batches.front().reads, std::nullopt);
  EXPECT_EQ(waits.batches.front().from, std::vector<Rank>{5});
}

TEST_F(ObservedChannelTest, AReportComesWhenSomethingChangedAndNotTooOften) {
  TimePoint at{std::chrono::hours(1)};
  tell(at);
  EXPECT_EQ(reporter_.wake_at(), TimePoint::max());
  register_batch("b", "trainer");
  channel_.complete(submit(Transfer{"b", Direction::send, "trainer"}), outcome(4));
  EXPECT_FALSE(reporter_.due(at + std::chrono::milliseconds(1900)));
  const AgentStatus status = tell(at + std::chrono::seconds(2));
  EXPECT_EQ(status.batches.front().version, 4);
  EXPECT_EQ(status.batches.front().since, 0);
  reporter_.repeat();
  EXPECT_TRUE(reporter_.due(at + std::chrono::seconds(4)));
  EXPECT_EQ(directory_.shown.size(), 2U);
}

TEST_F(ObservedChannelTest, APeriodOfZeroSaysNothing) {
  ReporterOptions options;
  options.period = Duration::zero();
  EXPECT_EQ(Reporter(channel_, options).wake_at(), TimePoint::max());
}

TEST(StatusRecord, FitsWhateverItSays) {
  AgentStatus status{7, std::string(5000, 'h'), 1234, false, 99, {}, 0, ""};
  for (int i = 0; i < 4000; ++i) {
    BatchStatus batch{"batch " + std::to_string(i), "side", "pull", i};
    batch.waits = std::string(500, 'x');
    batch.awaited.assign(300, 1);
    batch.side = std::string(5000, 's');
    status.batches.push_back(batch);
  }
  const std::string bytes = encode(status);
  EXPECT_LE(bytes.size(), largest_status);
  const AgentStatus read = decode_status(bytes);
  EXPECT_EQ(static_cast<std::int64_t>(read.batches.size()) + read.left_out, 4000);
  EXPECT_EQ(read.batches.front().batch, "batch 0");
  EXPECT_NE(print_status(bytes).find("batch 0"), std::string::npos);
  EXPECT_THROW(decode_status("no record"), Error);
}

}  // namespace
}  // namespace tensorbus::bus
