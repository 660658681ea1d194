// Agents in a simulated cluster that publish and pull.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "bus/simulation/fixture.h"

namespace tensorbus::bus::simulation {

class ShelfTest : public testing::Test {
 protected:
  ShelfTest() : fleet(1) {
    fleet.cluster.records = true;
    fleet.add(trainer);
    fleet.add(engine);
  }

  InitPair pair_of(const TestSide& side, bool publishes) const {
    return {"p",
            side.name,
            publishes ? "" : trainer.name,
            static_cast<std::int64_t>(side.ranks.size()),
            side.layout,
            true};
  }
  RegisterBatch registration(const TestSide& side, Rank rank, std::int64_t keep) {
    const Shape local = side.whole().local_shape(shape, rank);
    RegisterBatch command;
    command.batch = "b";
    command.registration = fleet.cluster.random();
    command.role = side.name;
    command.chunk_bytes = 16;
    command.items = {{"p", "w", Dtype::int64, local, plan::contiguous_strides(local), {}}};
    command.pairs = {"p"};
    command.versioned = Versioned{keep > 0 ? Direction::send : Direction::recv, 0, false, keep};
    return command;
  }
  CommandId enlist(const TestSide& side, Rank rank, std::int64_t keep) {
    const RegisterBatch command = registration(side, rank, keep);
    const auto tensors = static_cast<std::size_t>(std::max<std::int64_t>(keep, 1));
    fleet.loans[{rank, side.name}] =
        std::make_shared<SimulatedLoan>(std::vector<SimulatedLoan::Tensor>(
            tensors, {Dtype::int64, command.items.front().shape, {}, {}}));
    fleet.registrations[{rank, side.name}] = command.registration;
    return fleet.node(rank).submit(command, fleet.loans[{rank, side.name}],
                                   within(std::chrono::seconds(2)));
  }
  void open(const TestSide& side, std::int64_t keep) {
    std::vector<std::pair<Rank, CommandId>> ids;
    for (const Rank rank : side.ranks) {
      ids.emplace_back(rank, fleet.node(rank).submit(pair_of(side, keep > 0)));
    }
    fleet.wait_ok(ids);
    ids.clear();
    for (const Rank rank : side.ranks) ids.emplace_back(rank, enlist(side, rank, keep));
    fleet.wait_ok(ids);
  }
  Deadline within(Duration time) { return Deadline(fleet.cluster.clock().now() + time); }

  // A slot for the next version, or why there is none.
  Outcome take_slot(Rank rank, bool withdraw = false,
                    Duration time = std::chrono::milliseconds(100)) {
    return fleet.wait(
        rank, fleet.node(rank).submit(Publish{"b", {}, {}, 10, withdraw}, nullptr, within(time)));
  }
  void write(Rank rank, std::int64_t slot, std::int64_t tag) {
    fleet.for_each(
        trainer, rank, shape, [&](std::int64_t& number, std::int64_t i) { number = tag + i; },
        static_cast<std::size_t>(slot));
  }
  void shelve(Rank rank, std::int64_t version) {
    fleet.wait_ok({{rank, fleet.node(rank).submit(Shelve{"b", {}, version, true})}});
  }
  std::int64_t publish(Rank rank, std::int64_t tag) {
    const Outcome taken = take_slot(rank);
    EXPECT_TRUE(taken.status.ok()) << taken.status.message;
    write(rank, taken.slot, tag);
    shelve(rank, taken.version);
    return taken.version;
  }
  void publish_all(std::int64_t tag) {
    for (const Rank rank : trainer.ranks) publish(rank, tag);
  }
  Outcome pull(Rank rank, Pull wish = {"b", {}}, Duration time = std::chrono::milliseconds(300)) {
    return fleet.wait(rank, fleet.node(rank).submit(std::move(wish), nullptr, within(time)));
  }
  void expect_pulled(Rank rank, std::int64_t version, std::int64_t tag) {
    const Outcome outcome = pull(rank);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
    EXPECT_EQ(outcome.version, version);
    fleet.expect(engine, rank, shape, tag);
  }

  const Shape shape{4, 6};
  Fleet fleet;
  TestSide trainer = side("trainer", {0, 1}, Shard{0});
  TestSide engine = side("engine", {10, 11}, Shard{1});
};

}  // namespace tensorbus::bus::simulation
