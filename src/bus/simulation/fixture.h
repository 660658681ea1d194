// Short words for tests of agents in a simulated cluster.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bus/simulation/simulation.h"
#include "tensorbus/layout.h"

namespace tensorbus::bus::simulation {

// A side as its ranks announce it.
struct TestSide {
  std::string name;
  std::vector<Rank> ranks;
  std::optional<SideLayout> layout;

  Layout whole() const { return {Mesh(layout->mesh, ranks), layout->placements}; }
};

inline TestSide side(std::string name, std::vector<Rank> ranks, Placement placement) {
  const Shape mesh{static_cast<std::int64_t>(ranks.size())};
  return {std::move(name), std::move(ranks), SideLayout{mesh, {placement}, std::nullopt}};
}

class Fleet {
 public:
  explicit Fleet(std::uint64_t seed) : cluster(seed) {}

  Node& node(Rank rank) { return cluster.node(rank); }
  void add(const TestSide& side) {
    for (const Rank rank : side.ranks) {
      if (!known_.contains(rank)) cluster.add(rank);
      known_[rank] = true;
    }
  }

  CommandId init(Rank rank, const TestSide& local, const std::string& remote,
                 Deadline deadline = Deadline::never(), const std::string& pair = "p") {
    return node(rank).submit(InitPair{pair, local.name, remote,
                                      static_cast<std::int64_t>(local.ranks.size()), local.layout},
                             nullptr, deadline);
  }

  CommandId enlist(Rank rank, const TestSide& local, const Shape& shape,
                   Deadline deadline = Deadline::never(), const std::string& batch = "b",
                   Dtype dtype = Dtype::int64, std::optional<Versioned> versioned = {}) {
    const Shape mine = local.layout ? local.whole().local_shape(shape, rank) : shape;
    auto loan =
        std::make_shared<SimulatedLoan>(std::vector<SimulatedLoan::Tensor>{{dtype, mine, {}, {}}});
    RegisterBatch command;
    command.batch = batch;
    command.registration = cluster.random();
    command.items = {{"p", "", dtype, mine, plan::contiguous_strides(mine), std::nullopt}};
    command.role = local.name;
    command.versioned = versioned;
    loans[{rank, local.name}] = loan;
    registrations[{rank, local.name}] = command.registration;
    return node(rank).submit(command, loan, deadline);
  }

  CommandId close(Rank rank, const TestSide& local, const std::string& batch = "b") {
    return node(rank).submit(CloseBatch{batch, registrations.at({rank, local.name})});
  }

  CommandId send(Rank rank, Deadline deadline = Deadline::never(), const std::string& role = "") {
    return node(rank).submit(
        Transfer{"b", Direction::send, role.empty() ? std::nullopt : std::optional(role),
                 ++tickets_[rank]},
        nullptr, deadline);
  }
  CommandId recv(Rank rank, Deadline deadline = Deadline::never(), const std::string& role = "") {
    return node(rank).submit(
        Transfer{"b", Direction::recv, role.empty() ? std::nullopt : std::optional(role), 0},
        nullptr, deadline);
  }

  // The outcome; the test fails if none comes.
  Outcome wait(Rank rank, CommandId id) {
    cluster.run_until([&] { return node(rank).outcome(id) != nullptr; });
    const Outcome* outcome = node(rank).outcome(id);
    EXPECT_NE(outcome, nullptr) << "rank " << rank << ": no answer to command " << id.sequence;
    return outcome == nullptr ? Outcome{{Code::failed, "no answer"}} : *outcome;
  }
  void wait_ok(const std::vector<std::pair<Rank, CommandId>>& ids) {
    for (const auto& [rank, id] : ids) {
      const Outcome outcome = wait(rank, id);
      EXPECT_TRUE(outcome.status.ok()) << "rank " << rank << ": " << outcome.status.message;
    }
  }

  // Both sides call init_pair and register_tensors.
  void set_up(const TestSide& one, const TestSide& other, const Shape& shape) {
    add(one);
    add(other);
    std::vector<std::pair<Rank, CommandId>> ids;
    for (const Rank rank : one.ranks) ids.emplace_back(rank, init(rank, one, other.name));
    for (const Rank rank : other.ranks) ids.emplace_back(rank, init(rank, other, one.name));
    wait_ok(ids);
    ids.clear();
    for (const Rank rank : one.ranks) ids.emplace_back(rank, enlist(rank, one, shape));
    for (const Rank rank : other.ranks) ids.emplace_back(rank, enlist(rank, other, shape));
    wait_ok(ids);
  }

  // Element i of the whole tensor holds tag + i, wherever it lies.
  template <typename Visit>
  void for_each(const TestSide& side, Rank rank, const Shape& shape, Visit visit,
                std::size_t tensor = 0) {
    const Holding holding = side.whole().holding(shape, rank);
    const auto numbers = loans.at({rank, side.name})->numbers(tensor);
    std::size_t place = 0;
    walk(holding, shape, 0, 0, [&](std::int64_t element) { visit(numbers[place++], element); });
  }
  void fill(const TestSide& side, const Shape& shape, std::int64_t tag) {
    for (const Rank rank : side.ranks) {
      for_each(side, rank, shape, [&](std::int64_t& number, std::int64_t i) { number = tag + i; });
    }
  }
  void expect(const TestSide& side, Rank rank, const Shape& shape, std::int64_t tag) {
    for_each(side, rank, shape,
             [&](std::int64_t number, std::int64_t i) { EXPECT_EQ(number, tag + i); });
  }

  Cluster cluster;
  std::map<std::pair<Rank, std::string>, std::shared_ptr<SimulatedLoan>> loans;
  std::map<std::pair<Rank, std::string>, std::uint64_t> registrations;

 private:
  template <typename Visit>
  static void walk(const Holding& holding, const Shape& shape, std::size_t dim,
                   std::int64_t element, const Visit& visit) {
    if (dim == shape.size()) return visit(element);
    for (const Interval& interval : holding.dims[dim]) {
      for (std::int64_t i = interval.begin; i < interval.end; ++i) {
        walk(holding, shape, dim + 1, element * shape[dim] + i, visit);
      }
    }
  }

  std::map<Rank, bool> known_;
  std::map<Rank, std::uint64_t> tickets_;
};

}  // namespace tensorbus::bus::simulation
