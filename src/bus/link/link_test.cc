// Links of the public header, between buses of one process.
#include "tensorbus/link.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <optional>
#include <thread>

#include "base/testing/calls.h"

namespace tensorbus {
namespace {

template <typename Call>
Code code_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::ok;
}

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

class LinkTest : public testing::Test {
 protected:
  LinkTest() : trainer(train.link("trainer", "engine")), engine(serve.link("engine", "trainer")) {}

  static LinkTensor tensor(const std::string& name, std::vector<float>& values, Shape shape) {
    return {name, values.data(), Dtype::float32, std::move(shape)};
  }
  static LinkPull newer_than(std::int64_t version) {
    LinkPull how;
    how.newer_than = version;
    return how;
  }
  std::int64_t publish(float value) {
    weights.assign(weights.size(), value);
    return trainer.publish("policy", {&whole, 1}, soon());
  }
  // Both sides of the first round: each waits for the other.
  std::int64_t exchange() {
    std::int64_t sent = 0;
    std::thread sending([&] { sent = trainer.send("policy", {&whole, 1}, soon()); });
    EXPECT_EQ(engine.recv("policy", {&target, 1}, soon()), 1);
    sending.join();
    return sent;
  }

  std::shared_ptr<Store> store = connect(StoreUrl::parse("memory://link_test"));
  Bus train{store, {0}};
  Bus serve{store, {1}};
  Link trainer;
  Link engine;
  std::vector<float> weights = std::vector<float>(8);
  std::vector<float> got = std::vector<float>(8);
  LinkTensor whole = tensor("w", weights, {4, 2});
  LinkTensor target = tensor("w", got, {4, 2});
};

// proves: L1.3 L1.8 L1.12 L2.1 L2.3
TEST_F(LinkTest, WhatIsPublishedIsDescribedAndPulledInWholeOrInPart) {
  EXPECT_EQ(publish(1), 1);
  EXPECT_EQ(publish(2), 2);
  const std::vector<WholeTensor> described = engine.describe("policy", soon());
  ASSERT_EQ(described.size(), 1u);
  EXPECT_EQ(described[0].name, "w");
  EXPECT_EQ(described[0].shape, (Shape{4, 2}));
  const PulledTensors pulled = engine.pull_new("policy", soon());
  EXPECT_EQ(pulled.version, 2);
  std::vector<float> values(8);
  std::memcpy(values.data(), pulled.tensors.at(0).memory.get(), values.size() * sizeof(float));
  EXPECT_EQ(values, std::vector<float>(8, 2));

  std::vector<float> rows(6);
  LinkTensor part = tensor("w", rows, {3, 2});
  part.whole = Shape{4, 2};
  part.start = Shape{2, 0};
  part.pad = -1;
  EXPECT_EQ(engine.pull("policy", {&part, 1}, soon()), 2);
  EXPECT_EQ(rows, (std::vector<float>{2, 2, 2, 2, -1, -1}));
  EXPECT_EQ(engine.newest("policy", soon()), 2);
  const std::vector<std::string> unknown{"none"};
  EXPECT_EQ(code_of([&] { engine.pull_new("policy", soon(), unknown); }), Code::invalid_argument);
}

// proves: L1.3 L1.11
TEST_F(LinkTest, WhatIsGoneAndWhatNeverComesAreErrorsOfTheirOwn) {
  for (const float value : {1.0F, 2.0F, 3.0F}) publish(value);
  LinkPull first;
  first.version = 1;
  EXPECT_THROW(engine.pull("policy", {&target, 1}, soon(), first), VersionGone);
  LinkHandle waiting = engine.pull_async("policy", {&target, 1}, soon(), newer_than(3));
  trainer.close(soon());
  try {
    waiting.result(soon());
    FAIL() << "there is nothing newer";
  } catch (const EndOfStream& end) {
    EXPECT_EQ(end.version(), 3);
  }
  EXPECT_EQ(engine.pull("policy", {&target, 1}, soon()), 3);
}

// proves: L1.8
TEST_F(LinkTest, APullThatIsCancelledIsOverWhenItsMemoryIsFree) {
  publish(1);
  EXPECT_EQ(engine.pull("policy", {&target, 1}, soon()), 1);
  LinkHandle waiting = engine.pull_async("policy", {&target, 1}, soon(), newer_than(1));
  EXPECT_EQ(code_of([&] { waiting.wait(Deadline::after(Duration::zero())); }), Code::timeout);
  EXPECT_FALSE(waiting.done());
  waiting.cancel();
  EXPECT_EQ(code_of([&] { waiting.result(soon()); }), Code::cancelled);
  publish(2);
  EXPECT_EQ(engine.pull("policy", {&target, 1}, soon(), newer_than(1)), 2);
  EXPECT_EQ(got, std::vector<float>(8, 2));
}

// proves: L1.8
TEST_F(LinkTest, ClosingEndsWhatWaitsForTheOtherSide) {
  LinkHandle waiting = engine.pull_async("never published", {&target, 1}, soon());
  engine.close(soon());
  EXPECT_EQ(code_of([&] { waiting.result(soon()); }), Code::cancelled);
}

// proves: L1.8
TEST_F(LinkTest, ClosingEndsCallsAtWhateverStepTheyAre) {
  publish(1);
  for (int pause = 0; pause < 200; ++pause) {
    EXPECT_EQ(engine.pull("policy", {&target, 1}, soon()), 1);
    LinkHandle waiting = engine.pull_async("policy", {&target, 1}, soon(), newer_than(1));
    std::this_thread::sleep_for(std::chrono::microseconds(2 * pause));
    engine.close(soon());
    EXPECT_EQ(code_of([&] { waiting.result(soon()); }), Code::cancelled) << pause;
  }
}

// proves: L1.9
TEST_F(LinkTest, TensorsMayChangeWhenASendHasStagedThem) {
  EXPECT_EQ(exchange(), 1);
  weights.assign(weights.size(), 5);
  LinkHandle sending = trainer.send_async("policy", {&whole, 1}, soon());
  sending.wait_until_staged(soon());
  weights.assign(weights.size(), -1);
  EXPECT_FALSE(sending.done()) << "nobody has read";
  EXPECT_EQ(engine.recv("policy", {&target, 1}, soon()), 2);
  EXPECT_EQ(got, std::vector<float>(8, 5));
  EXPECT_EQ(sending.result(soon()), 2);
  const std::map<Rank, ReadBy> read{{1, ReadBy::read}};
  EXPECT_EQ(sending.readers(), read);
  EXPECT_EQ(trainer.last_send("policy")->version, 2);
  EXPECT_EQ(trainer.last_send("policy")->readers, read);
  EXPECT_FALSE(engine.last_send("policy"));
}

// proves: L1.9
TEST_F(LinkTest, SendsThatRunAreReadInTheOrderOfTheirCalls) {
  EXPECT_EQ(exchange(), 1);
  std::vector<LinkHandle> sending;
  std::vector<std::vector<float>> sent;
  for (const float value : {1.0F, 2.0F, 3.0F, 4.0F}) sent.emplace_back(8, value);
  for (std::vector<float>& values : sent) {
    const LinkTensor each = tensor("w", values, {4, 2});
    sending.push_back(trainer.send_async("policy", {&each, 1}, soon()));
  }
  std::int64_t version = 1;
  for (const std::vector<float>& values : sent) {
    EXPECT_EQ(engine.recv("policy", {&target, 1}, soon()), ++version);
    EXPECT_EQ(got, values);
  }
  for (LinkHandle& each : sending) each.result(soon());
}

std::vector<std::uint16_t> brains(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits;
  for (const float value : values) bits.push_back(static_cast<std::uint16_t>(bits_of(value) >> 16));
  return bits;
}

// proves: L1.9
TEST_F(LinkTest, AWideReaderGetsItAllAlsoIfOthersWantLess) {
  std::vector<std::uint16_t> short_ones(8);
  const LinkTensor narrow{"w", short_ones.data(), Dtype::bfloat16, {4, 2}};
  Bus observe{store, {2}};
  Link watcher = observe.link("watcher", "trainer");
  const auto receive = [&](Link& link, const LinkTensor& into, std::int64_t version) {
    return std::thread([&link, into, version] {
      EXPECT_EQ(link.recv("policy", {&into, 1}, soon()), version);
    });
  };
  LinkSend both;
  for (std::int64_t version = 1; version <= 4; ++version) {
    // Exact in float32 and, but for the last bits, in bfloat16.
    weights.assign(weights.size(), static_cast<float>(version) + 1.0F / 4096);
    std::thread first = receive(engine, narrow, version);
    std::optional<std::thread> second;
    if (version > 2) second.emplace(receive(watcher, target, version));
    both.min_readers = version > 2 ? 2 : 1;
    EXPECT_EQ(trainer.send("policy", {&whole, 1}, soon(), both), version);
    first.join();
    EXPECT_EQ(short_ones, brains(weights));
    if (!second) continue;
    second->join();
    EXPECT_EQ(got, weights);
  }
}

// proves: L1.2
TEST_F(LinkTest, AShelfOfANarrowerTypeGivesRoundedNumbers) {
  weights.assign(weights.size(), 2 + 1.0F / 4096);
  LinkPublish how;
  how.dtype = Dtype::bfloat16;
  EXPECT_EQ(trainer.publish("policy", {&whole, 1}, soon(), how), 1);
  EXPECT_EQ(engine.describe("policy", soon()).at(0).dtype, Dtype::bfloat16);
  EXPECT_EQ(engine.pull("policy", {&target, 1}, soon()), 1);
  EXPECT_EQ(got, std::vector<float>(8, 2));
}

// proves: L1.10
TEST_F(LinkTest, VersionsAreKnownWhenASendHasReturned) {
  EXPECT_EQ(exchange(), 1);
  const std::map<std::string, std::map<Rank, std::int64_t>> everybody{{"trainer", {{0, 1}}},
                                                                      {"engine", {{1, 1}}}};
  EXPECT_EQ(trainer.versions("policy", soon()), everybody);
  EXPECT_EQ(engine.versions("policy", soon()), everybody);
}

TEST_F(LinkTest, TensorsThatSayTooLittleOrTooMuchAreRefused) {
  LinkTensor odd = whole;
  odd.start = Shape{0, 0};
  EXPECT_EQ(code_of([&] { trainer.publish("policy", {&odd, 1}, soon()); }), Code::invalid_argument);
  odd.whole = Shape{4, 2};
  odd.layout = LinkLayout{{1}, {Replicate{}}, {0}};
  EXPECT_EQ(code_of([&] { trainer.publish("policy", {&odd, 1}, soon()); }), Code::invalid_argument);
  Link alone = train.link("alone");
  EXPECT_EQ(code_of([&] { alone.send("policy", {&whole, 1}, soon()); }), Code::invalid_argument);
  EXPECT_EQ(code_of([&] { alone.newest("policy", soon()); }), Code::invalid_argument);
}

// proves: E1.3 E1.7
TEST_F(LinkTest, WhoHoldsAVersionGetsTheChangedValuesAndWritesThemWhenItLikes) {
  LinkOptions promise;
  promise.delta = true;
  Link reader = serve.link("reader", "trainer", promise);
  LinkPublish always;
  always.delta = LinkDelta::always;
  trainer.publish("policy", {&whole, 1}, soon(), always);
  EXPECT_EQ(reader.pull("policy", {&target, 1}, soon()), 1);
  EXPECT_FALSE(reader.last_update("policy")->patched);
  weights[3] = 7;
  trainer.publish("policy", {&whole, 1}, soon(), always);
  EXPECT_EQ(reader.fetch("policy", {&target, 1}, soon()), 2);
  const auto update = reader.last_update("policy");
  EXPECT_TRUE(update->patched) << update->why;
  EXPECT_EQ(update->values, 1);
  EXPECT_EQ(update->elements, 8);
  EXPECT_EQ(got[3], 0);
  EXPECT_EQ(reader.apply("policy", {&target, 1}, 2, soon()), 2);
  EXPECT_EQ(got, weights);
  weights[4] = 8;
  trainer.publish("policy", {&whole, 1}, soon(), always);
  EXPECT_EQ(reader.pull("policy", {&target, 1}, soon()), 3);
  EXPECT_EQ(got, weights);
  EXPECT_FALSE(engine.last_update("policy").has_value()) << "it has promised nothing";
}

}  // namespace
}  // namespace tensorbus
