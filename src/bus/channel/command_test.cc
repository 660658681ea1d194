#include "bus/channel/command.h"

#include <gtest/gtest.h>

#include <random>

#include "base/testing/calls.h"
#include "bus/channel/command_fields.h"

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
  batch.items.push_back({"wk", "box", Dtype::float32, {3}, {1}, Shape{9}, std::nullopt, Shape{8}});
  layout.mesh_id = 4;
  batch.layouts = {strided, layout};
  batch.versioned = Versioned{Direction::recv, 6, true, 2};
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
          InitPair{"wq", "trainer", "", 1, std::nullopt, true},
          Publish{"weights", "trainer", 4, 5000, true},
          Shelve{"weights", std::nullopt, 4, false},
          Pull{"weights", "engine", std::nullopt, 3, true},
          Pull{"weights", std::nullopt, 3},
          QueryNewest{"weights", "engine"},
          QueryContents{"weights"},
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
  outcome.slot = 1;
  outcome.absence = Absence::gone;
  outcome.contents = {{"w", Dtype::bfloat16, {4, 6}}, {"step", Dtype::int64, {}}};
  return outcome;
}

constexpr wire::Title title{"outcome"};

TEST(CommandTest, WhatIsEncodedIsDecoded) {
  for (const Command& command : samples()) EXPECT_EQ(decode_command(encode(command)), command);
  for (const Outcome& outcome : {sample_outcome(), Outcome{}}) {
    EXPECT_EQ(wire::read<Outcome>(wire::write(outcome, title), title), outcome);
  }
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
  std::string bytes = encode(samples()[0]);
  bytes[std::string_view("tensorbus command").size()] = 9;
  try {
    decode_command(bytes);
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
  const BatchItem box{"p", "w", Dtype::float32, {2}, {1}, Shape{3}, {}, Shape{2}};
  batch.items[0] = box;
  EXPECT_EQ(decode_command(encode(batch)), Command(batch)) << "a box may reach beyond the whole";
  for (const Shape& start : {Shape{}, Shape{0, 0}, Shape{-1}, Shape{INT64_MAX}}) {
    batch.items[0].start = start;
    EXPECT_EQ(refused(batch), Code::invalid_argument);
  }
  batch.items[0] = box;
  batch.items[0].global_shape.reset();
  EXPECT_EQ(refused(batch), Code::invalid_argument) << "a box of nothing";
}

TEST(CommandTest, UnknownKindsAreRefused) {
  std::string bytes = encode(Command(CloseBatch{"b", 1}));
  for (const char kind : {'\x0a', '\x0b', '\xff'}) {
    bytes[std::string_view("tensorbus command.").size()] = kind;
    EXPECT_EQ(code_of([&] { decode_command(bytes); }), Code::invalid_argument);
  }
  EXPECT_EQ(code_of([&] { decode_command(std::string(1 << 20, '\x91')); }), Code::invalid_argument);
}

TEST(CommandTest, IsPrintedForPeople) {
  EXPECT_EQ(wire::print(Command(InitPair{"wq", "trainer", "engine", 4,
                                         SideLayout{{4}, {StridedShard{0, 2}}, std::nullopt}})),
            "kind: init_pair\n"
            "  pair: \"wq\"\n"
            "  local: \"trainer\"\n"
            "  remote: \"engine\"\n"
            "  world_size: 4\n"
            "  layout:\n"
            "    mesh: [4]\n"
            "    placements:\n"
            "      0: strided shard\n"
            "        dim: 0\n"
            "        split_factor: 2\n"
            "    coordinate: none\n"
            "    mesh_id: 0\n"
            "  alone: no\n");
  for (const Command& command : samples()) EXPECT_FALSE(wire::print(command).empty());
  EXPECT_FALSE(wire::print(sample_outcome()).empty());
}

}  // namespace
}  // namespace tensorbus::bus
