// Agents in a simulated cluster that publish and pull.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "bus/simulation/fixture.h"
#include "delta/change/bitmap.h"

namespace tensorbus::bus::simulation {

class ShelfTest : public testing::Test {
 protected:
  // What each element of the whole tensor is.
  using Content = std::function<std::int64_t(std::int64_t)>;

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
    command.versioned =
        Versioned{keep > 0 ? Direction::send : Direction::recv, 0, false, keep, deltas};
    return command;
  }
  CommandId enlist(const TestSide& side, Rank rank, std::int64_t keep) {
    const RegisterBatch command = registration(side, rank, keep);
    const auto tensors = static_cast<std::size_t>(std::max<std::int64_t>(keep, 1));
    const Shape& local = command.items.front().shape;
    std::vector<SimulatedLoan::Tensor> lent(tensors, {Dtype::int64, local, {}, {}});
    if (deltas && keep > 0) lent.push_back({Dtype::int64, words_for(local), {}, {}});
    fleet.loans[{rank, side.name}] = std::make_shared<SimulatedLoan>(std::move(lent));
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
        rank, fleet.node(rank).submit(Publish{"b", {}, {}, 10, withdraw, mode, delta_memory},
                                      nullptr, within(time)));
  }
  void write(Rank rank, std::int64_t slot, std::int64_t tag) {
    write_each(rank, slot, [&](std::int64_t i) { return tag + i; });
  }
  void write_each(Rank rank, std::int64_t slot, const Content& content) {
    fleet.for_each(
        trainer, rank, shape, [&](std::int64_t& number, std::int64_t i) { number = content(i); },
        static_cast<std::size_t>(slot));
  }
  void shelve(Rank rank, std::int64_t version, bool compared = false) {
    fleet.wait_ok({{rank, fleet.node(rank).submit(Shelve{"b", {}, version, true, compared})}});
  }
  std::int64_t publish(Rank rank, std::int64_t tag) {
    return publish_each(rank, [&](std::int64_t i) { return tag + i; });
  }
  std::int64_t publish_each(Rank rank, const Content& content) {
    const Outcome taken = take_slot(rank);
    EXPECT_TRUE(taken.status.ok()) << taken.status.message;
    write_each(rank, taken.slot, content);
    compare(rank, taken);
    shelve(rank, taken.version, taken.previous.has_value());
    return taken.version;
  }
  void publish_each(const Content& content) {
    for (const Rank rank : trainer.ranks) publish_each(rank, content);
  }
  // As the worker does while it fills the slot.
  void compare(Rank rank, const Outcome& taken) {
    if (!taken.previous) return;
    SimulatedLoan& loan = *fleet.loans.at({rank, trainer.name});
    const auto now = loan.numbers(static_cast<std::size_t>(taken.slot));
    const auto before = loan.numbers(static_cast<std::size_t>(*taken.previous));
    const auto words = loan.numbers(loan.tensors().size() - 1);
    std::ranges::fill(words, 0);
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i] != before[i]) words[i / 64] |= std::int64_t{1} << i % 64;
    }
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

  static Shape words_for(const Shape& local) {
    return {delta::Bitmap::words_for(element_count(local))};
  }

  const Shape shape{4, 6};
  bool deltas = false;  // of what is registered from now on
  delta::Mode mode = delta::Mode::off;
  std::optional<std::int64_t> delta_memory;
  Fleet fleet;
  TestSide trainer = side("trainer", {0, 1}, Shard{0});
  TestSide engine = side("engine", {10, 11}, Shard{1});
};

}  // namespace tensorbus::bus::simulation
