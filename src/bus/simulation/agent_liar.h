// A sender and a reader who are lied to: by the store, by each other, by their workers and by what
// their last agent left. Whatever sender and reader hear, nothing worse than an error comes of it,
// and two other agents in the same store notice nothing.
#pragma once

#include <string>
#include <vector>

#include "bus/round/messages.h"
#include "bus/simulation/simulation.h"
#include "fabric/conformance/dice.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus::simulation {

class LiedTo {
 public:
  explicit LiedTo(std::string_view bytes) : dice_(bytes), cluster_(1) {
    for (const Rank rank : {0, 1, 2, 3}) cluster_.add(rank);
    set_up("lied to", 0, 1);
    set_up("left alone", 2, 3);
    fabric::tap_messages(cluster_.hub(), [this](const auto& from, const auto&, auto, auto said) {
      if (rank_of(from) < 2 && std::exchange(falsify_next_, false)) said = dice_.damaged(said);
      return std::vector<std::string>{said};
    });
  }

  // Until the bytes are used up. False: the others have noticed.
  bool run() {
    while (!dice_.used_up()) lie();
    return round_of_the_others();
  }

 private:
  void lie() {
    const auto rank = static_cast<Rank>(dice_.below(2));
    switch (dice_.below(8)) {
      case 0:
        return change_a_record();
      case 1:
        falsify_next_ = true;
        return;
      case 2:
        return command(rank);
      case 3:
        return restart(rank);
      case 4:
        cluster_.clock().advance(std::chrono::milliseconds(dice_.number() % 10'000));
        return;
      default:
        for (std::size_t steps = dice_.byte(); steps > 0; --steps) cluster_.step();
    }
  }

  void change_a_record() {
    std::vector<std::string> keys;
    for (const auto& [key, value] : cluster_.store().values) {
      const auto parsed = parse_key(key);
      const auto* agent = parsed ? std::get_if<AgentKey>(&*parsed) : nullptr;
      const bool others = agent != nullptr ? agent->rank > 1 : key.find("alone") != key.npos;
      if (!others) keys.push_back(key);
    }
    if (keys.empty()) return;
    const std::string& key = keys[dice_.byte() % keys.size()];
    const std::string before = cluster_.store().values.at(key);
    if (dice_.below(8) == 0) return cluster_.store().set(key, std::nullopt);
    cluster_.store().set(key, dice_.below(8) == 0 ? dice_.text(60) : dice_.damaged(before));
  }

  void command(Rank rank) {
    RegisterBatch again = registration("lied to", rank, rank == 0 ? "from" : "to");
    const std::vector<Command> commands{
        side("lied to", rank == 0),
        again,
        Transfer{"lied to", rank == 0 ? Direction::send : Direction::recv, std::nullopt, 1},
        Transfer{"lied to", rank == 0 ? Direction::recv : Direction::send, std::nullopt, 1},
        QuerySignal{"lied to", false, std::nullopt, std::nullopt},
        QueryVersions{"lied to", std::nullopt},
        Publish{"lied to", std::nullopt, 2, 10, true},
        Shelve{"lied to", std::nullopt, 2},
        Pull{"lied to", std::nullopt, std::nullopt, 1},
        QueryNewest{"lied to", std::nullopt},
        QueryContents{"lied to"},
        QueryStage{"lied to", std::nullopt, 1},
        CloseBatch{"lied to", again.registration}};
    const std::string bytes = encode(commands[dice_.byte() % commands.size()]);
    try {
      const Command damaged = decode_command(dice_.damaged(bytes));
      const bool lends = std::holds_alternative<RegisterBatch>(damaged);
      const Deadline deadline(cluster_.clock().now() + std::chrono::seconds(1));
      cluster_.node(rank).submit(damaged, lends ? loan() : nullptr, deadline);
    } catch (const Error&) {
      // Refused by the channel.
    }
  }

  void restart(Rank rank) {
    Node& node = cluster_.node(rank);
    node.kill();
    for (const auto& [key, value] : node.state().scan("session/")) {
      node.state().put(key, dice_.damaged(value));
    }
    node.restart(dice_.below(2) == 0);
  }

  static std::shared_ptr<SimulatedLoan> loan() {
    return std::make_shared<SimulatedLoan>(
        std::vector<SimulatedLoan::Tensor>{{Dtype::int64, shape(), {}, {}}});
  }
  static Shape shape() { return {3, 4}; }
  static InitPair side(const std::string& name, bool sends) {
    return {name, sends ? "from" : "to", sends ? "to" : "from", 1,
            SideLayout{{1}, {Shard{0}}, std::nullopt}};
  }
  static RegisterBatch registration(const std::string& name, Rank rank, const std::string& role) {
    RegisterBatch command;
    command.batch = name;
    command.registration = static_cast<std::uint64_t>(rank) + 1;
    command.role = role;
    command.chunk_bytes = 16;
    command.items = {
        {name, "", Dtype::int64, shape(), plan::contiguous_strides(shape()), std::nullopt}};
    return command;
  }

  void set_up(const std::string& name, Rank sender, Rank reader) {
    const CommandId one = cluster_.node(sender).submit(side(name, true));
    const CommandId other = cluster_.node(reader).submit(side(name, false));
    await(sender, one);
    await(reader, other);
    const auto sends = cluster_.node(sender).submit(registration(name, sender, "from"), loan());
    const auto reads = cluster_.node(reader).submit(registration(name, reader, "to"), loan());
    await(sender, sends);
    await(reader, reads);
  }

  bool await(Rank rank, CommandId id) {
    cluster_.run_until([&] { return cluster_.node(rank).outcome(id) != nullptr; });
    const Outcome* outcome = cluster_.node(rank).outcome(id);
    return outcome != nullptr && outcome->status.ok();
  }

  bool round_of_the_others() {
    const CommandId sent =
        cluster_.node(2).submit(Transfer{"left alone", Direction::send, std::nullopt, 1});
    const CommandId read =
        cluster_.node(3).submit(Transfer{"left alone", Direction::recv, std::nullopt, 0});
    return await(2, sent) && await(3, read);
  }

  fabric::Dice dice_;
  Cluster cluster_;
  bool falsify_next_ = false;
};

}  // namespace tensorbus::bus::simulation
