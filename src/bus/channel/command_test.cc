#include "bus/channel/command.h"

#include <gtest/gtest.h>

#include <random>

#include "bus/channel/packed.h"

namespace tensorbus::bus {
namespace {

std::vector<Command> samples() {
  SideLayout layout;
  layout.mesh = {2, 3};
  layout.placements = {Shard{-1}, Partial{ReduceOp::max}};
  layout.coordinate = std::vector<std::int64_t>{1, 2};
  SideLayout strided;
  strided.mesh = {4, 2};
  strided.placements = {StridedShard{0, 2}, Replicate{}};
  RegisterBatch batch{"weights", 17, "trainer", {}, 1 << 20, Verify::sample};
  batch.items.push_back({"wq", "layer.0", Dtype::bfloat16, {4, 6}, {6, 1}, Shape{8, 6}});
  batch.items.push_back({"wq", "", Dtype::int8, {}, {}, std::nullopt});
  batch.items.push_back({"wk", "", Dtype::float32, {0, 3}, {-3, 1}, std::nullopt});
  batch.items.push_back({"wk", "own", Dtype::float32, {3}, {1}, std::nullopt, 1});
  layout.mesh_id = 4;
  batch.layouts = {strided, layout};
  batch.versioned = Versioned{Direction::recv, 6};
  batch.pairs = {"wq", "wv"};
  batch.refused = "it holds more than tensors";
  return {InitPair{"wq", "trainer", "engine", 6, layout},
          InitPair{"wq", "trainer", "engine", 8, strided},
          InitPair{"wk", "a", "b", 1, std::nullopt},
          batch,
          Transfer{"weights", Direction::recv, "engine", 0},
          Transfer{"weights", Direction::send, std::nullopt, UINT64_MAX},
          QuerySignal{"weights", false, 3, std::nullopt},
          Transfer{"weights", Direction::send, std::nullopt, 3, 4, 2},
          QueryVersions{"weights", "engine"},
          CloseBatch{"weights", 17}};
}

Outcome sample_outcome() {
  Outcome outcome;
  outcome.status = {Code::peer_lost, "rank 3 is gone"};
  outcome.round = 7;
  outcome.readers = {{1, ReaderOutcome::read}, {3, ReaderOutcome::lost}};
  outcome.lost = {3};
  outcome.signal = true;
  outcome.bytes_by_path = {{"mapped", 4096}};
  outcome.version = 8;
  outcome.versions = {{"engine", {{1, 8}, {3, 7}}}};
  outcome.stale = true;
  outcome.bytes = 4096;
  return outcome;
}

Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::ok;
}

TEST(CommandTest, WhatIsEncodedIsDecoded) {
  for (const Command& command : samples()) EXPECT_EQ(decode_command(encode(command)), command);
  EXPECT_EQ(decode_outcome(encode(sample_outcome())), sample_outcome());
  EXPECT_EQ(decode_outcome(encode(Outcome{})), Outcome{});
}

TEST(CommandTest, NamesItsTypeAndWhatItIsAbout) {
  EXPECT_EQ(type_of(CloseBatch{"b", 1}), "close_batch");
  EXPECT_EQ(type_of(Transfer{}), "transfer");
  EXPECT_EQ(context_of(InitPair{"p", "l", "r", 1, {}}), "p");
  EXPECT_EQ(context_of(QuerySignal{"b", true, {}, {}}), "b");
}

TEST(CommandTest, AnyChangedByteIsAnErrorOrAnotherCommand) {
  std::mt19937 random(7);
  for (const Command& command : samples()) {
    const std::string good = encode(command);
    for (int round = 0; round < 2000; ++round) {
      std::string bytes = good;
      bytes[random() % bytes.size()] = static_cast<char>(random());
      if (round % 3 == 0) bytes.resize(random() % bytes.size());
      try {
        const Command other = decode_command(bytes);
        EXPECT_EQ(decode_command(encode(other)), other);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::invalid_argument) << error.what();
      }
    }
  }
}

TEST(CommandTest, AnotherVersionIsRefusedByItsNumber) {
  Json json = unpack(encode(samples()[0]), "test");
  json[0] = 9U;
  try {
    decode_command(pack(json));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("version is 9"), std::string::npos) << error.what();
  }
}

TEST(CommandTest, ImpossibleValuesAreRefused) {
  const auto refused = [](const Command& command) {
    return code_of([&] { decode_command(encode(command)); });
  };
  EXPECT_EQ(refused(CloseBatch{"", 1}), Code::invalid_argument);
  EXPECT_EQ(refused(Transfer{std::string(5000, 'x'), Direction::send, {}, 1}),
            Code::invalid_argument);
  RegisterBatch batch{"b", 1, {}, {{"p", "", Dtype::float32, {2}, {1, 1}, {}}}, {}, Verify::off};
  EXPECT_EQ(refused(batch), Code::invalid_argument);
  batch.items[0].strides = {1};
  batch.items[0].shape = {-2};
  EXPECT_EQ(refused(batch), Code::invalid_argument);
  batch.items[0] = {"p", "w", Dtype::float32, {2}, {1}, {}, 0};
  EXPECT_EQ(refused(batch), Code::invalid_argument) << "there is no such layout";
}

TEST(CommandTest, DeepNestingDoesNotEndTheStack) {
  const std::string nested(1 << 20, '\x91');
  EXPECT_EQ(code_of([&] { decode_command(nested); }), Code::invalid_argument);
}

}  // namespace
}  // namespace tensorbus::bus
