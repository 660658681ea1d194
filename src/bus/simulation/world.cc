#include "bus/simulation/world.h"

#include <algorithm>
#include <array>
#include <limits>

#include "bus/directory/records.h"
#include "bus/simulation/shelf_user.h"

namespace tensorbus::bus::simulation {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t most_steps_before = 400'000;
constexpr std::size_t steps_with_faults = 4'000;
constexpr std::size_t most_steps_after = 400'000;
constexpr std::size_t enough = 2;

}  // namespace

void Report::add(const Report& other) {
  for (const auto& [what, count] : other.counts) counts[what] += count;
  for (const auto& [fault, steps] : other.hits) {
    for (std::size_t at = 0; at < step_count; ++at) hits[fault][at] += steps[at];
  }
}

World::World(std::uint64_t seed, const Faults& faults)
    : cluster(seed),
      checks(cluster,
             [this](const auto& invariant, const auto& what) { violate(invariant, what); }),
      claims(cluster, what_claims_need()),
      faults_(faults) {
  checks.on_step = [this](Rank rank, Step step) { claims.on_step(rank, step); };
  checks.on_said = [this](Rank from, Rank to, const AgentMessage& message) {
    claims.on_said(from, to, message);
  };
  cluster.weather.network = odds(3);
  cluster.weather.lossy = cluster.losses(2) == 1;
  if (faults_.slow && odds(4)) cluster.weather.queue = 2 + cluster.random(3);
  if (faults_.slow && odds(4)) cluster.weather.words = 8 + cluster.random(8);
  shelved_ = odds(4);
  together_ = shelved_ && !odds(3);
  keep_ = 2 + cluster.random(2);
  choose_deltas(seed);
  two_way_ = !shelved_ && odds(3);
  linked_ = !shelved_ && !two_way_ && odds(2);
  make_sides();
  for (UserSide& side : sides_) {
    for (const Rank rank : side.ranks) {
      cluster.add(rank);
      if (shelved_) {
        users_.push_back(std::make_unique<ShelfUser>(*this, side, rank));
      } else {
        users_.push_back(std::make_unique<RoundUser>(*this, side, rank));
      }
    }
    say("side {}: {} ranks from rank {} on, {}", side.name, side.ranks.size(), side.ranks.front(),
        to_string(side.layout.placements[0]));
  }
}

// Mostly small: two or three ranks meet in more ways than sixteen.
void World::make_sides() {
  const bool large = odds(20);
  const auto add = [&](std::string name, std::string remote, Rank first, bool sends) {
    UserSide side{std::move(name), std::move(remote), {}, {}, sends};
    const auto size = static_cast<Rank>(1 + cluster.random(large ? 6 : 3));
    for (Rank rank = 0; rank < size; ++rank) side.ranks.push_back(first + rank);
    side.layout.mesh = {size};
    switch (cluster.random(sends && !two_way_ ? 4 : 3)) {
      case 0:
        side.layout.placements = {Replicate{}};
        break;
      case 1:
        side.layout.placements = {Shard{0}};
        break;
      case 2:
        side.layout.placements = {Shard{1}};
        break;
      default:
        side.layout.placements = {Partial{ReduceOp::max}};
    }
    sides_.push_back(std::move(side));
  };
  add("train", "infer", 0, true);
  add("infer", "train", 10, false);
  if (!two_way_ && odds(3)) add("more", "train", 20, false);
}

std::optional<std::int64_t> World::changed_in(Life sender, std::int64_t version,
                                              std::int64_t element) const {
  const auto content = contents.find({sender, version});
  if (content == contents.end() || !content->second.contains(element)) return std::nullopt;
  return content->second.at(element);
}

// Null: users send and receive.
const ShelfUser* World::shelf_user(Rank rank) const {
  const auto found =
      std::ranges::find_if(users_, [&](const auto& each) { return each->rank() == rank; });
  const bool none = !shelved_ || found == users_.end();
  return none ? nullptr : &static_cast<const ShelfUser&>(**found);
}

PatchClaims::Needs World::what_claims_need() {
  PatchClaims::Needs needs;
  needs.violate = [this](const auto& invariant, const auto& what) { violate(invariant, what); };
  needs.lacks = [this](Rank reader, std::int64_t generation, std::int64_t version) {
    const ShelfUser* user = shelf_user(reader);
    return user == nullptr ? std::string() : user->lacks(generation, version);
  };
  needs.pull = [this](Rank reader) {
    const ShelfUser* user = shelf_user(reader);
    return user == nullptr ? std::nullopt : user->pull_that_waits();
  };
  needs.most_bytes = [this] { return delta_memory_; };
  needs.calm = [this] { return calm_; };
  return needs;
}

// Not by the dice of the cluster: what happens without deltas stays what it was. Room for no base,
// for one and its patch, for two, for all.
void World::choose_deltas(std::uint64_t seed) {
  constexpr delta::Mode modes[] = {delta::Mode::off, delta::Mode::always, delta::Mode::always,
                                   delta::Mode::automatic};
  constexpr std::int64_t base_bytes = 16;
  constexpr std::int64_t patch_bytes = 250;
  if (!shelved_) return;
  delta_mode_ = modes[seed % 4];
  const auto room = static_cast<std::int64_t>(seed / 4 % 4);
  if (room < 3) delta_memory_ = room * (base_bytes + patch_bytes);
}

void World::violate(const std::string& invariant, const std::string& what) {
  say("VIOLATION of {}: {}", invariant, what);
  report.violations.push_back(invariant + ": " + what);
}

// A worker that has not registered has no memory to take back, and one with a shelf lends none.
bool can_hit(const std::string& fault, Step step) {
  constexpr std::array without{
      Step::started,       Step::pairing,  Step::slot_taken, Step::published, Step::pinning,
      Step::patch_offered, Step::fetching, Step::applying,   Step::voted,     Step::decided};
  return fault != "raise" || std::ranges::find(without, step) == without.end();
}

void World::hit(const std::string& fault, Rank rank) {
  std::string after;
  for (const Step step : cluster.node(rank).last_steps()) {
    if (!can_hit(fault, step))
      violate("the report", fmt::format("{} at {}", fault, to_string(step)));
    after += fmt::format("{}{}", after.empty() ? "" : ", ", to_string(step));
    ++report.hits[fault][static_cast<std::size_t>(step)];
  }
  say("rank {}: {}, after {}", rank, fault, after);
}

bool World::satisfied() const {
  return std::ranges::all_of(users_, [](const auto& user) { return user->successes >= enough; });
}

void World::change_content() {
  ++content_;
  say("from now on all have tensor {}, {}", content_, tensorbus::to_string(shape_of(content_)));
}

void World::expect_progress(std::size_t most_steps) {
  for (int times = linked_ ? 3 : 1; times > 0 && report.violations.empty(); --times) {
    for (const auto& user : users_) user->successes = 0;
    for (std::size_t step = 0; step < most_steps && report.violations.empty() && !satisfied();
         ++step) {
      happen();
      if (!calm_ && odds(500)) cluster.clock().advance(milliseconds(cluster.random(100)));
    }
    for (const auto& user : users_) {
      if (report.violations.empty() && user->successes < enough) violate("I9", user->doing());
    }
    if (times > 1) change_content();
  }
}

std::int64_t World::newest_of_all(Life sender) const {
  std::map<std::int64_t, std::size_t> counts;
  const std::vector<Life> senders = checks.senders_with(sender);
  for (const auto& [life, version] : shelved_versions) {
    if (std::ranges::find(senders, life) != senders.end()) ++counts[version];
  }
  std::int64_t newest = 0;
  for (const auto& [version, count] : counts) {
    if (count == senders.size()) newest = version;
  }
  return newest;
}

bool World::have_all_published(Life sender, std::int64_t version) const {
  return std::ranges::all_of(checks.senders_with(sender), [&](const Life& each) {
    return shelved_versions.contains({each, version});
  });
}

bool World::pulls_what_is_there(const UserSide& side) const {
  return std::ranges::all_of(users_, [&](const auto& user) {
    const bool other_side = std::ranges::find(side.ranks, user->rank()) == side.ranks.end();
    return other_side || static_cast<const ShelfUser&>(*user).pulls_what_is_there();
  });
}

std::optional<Life> World::publisher() const {
  std::optional<Life> one;
  for (const auto& user : users_) {
    const auto& each = static_cast<const ShelfUser&>(*user);
    if (!each.publishes()) continue;
    const auto generation = checks.generation_of(each.life());
    if (!generation || (one && checks.generation_of(*one) != generation)) return std::nullopt;
    one = each.life();
  }
  return one;
}

void World::expect_newest(std::size_t most_steps) {
  resting_ = true;
  const auto publishers_rest = [&] {
    return std::ranges::all_of(users_, [](const auto& user) {
      const auto& each = static_cast<const ShelfUser&>(*user);
      return !each.publishes() || each.rests();
    });
  };
  std::size_t quiet_for = 0;  // what was published last is heard of later
  for (std::size_t step = 0; step < most_steps && report.violations.empty(); ++step) {
    quiet_for = publishers_rest() ? quiet_for + 1 : 0;
    // A sender that has lost the first sender follows it again after a fifth of a second.
    if (!rested_ && quiet_for == 1) cluster.clock().advance(milliseconds(250));
    if (!rested_ && quiet_for > 3'000) {
      rested_ = true;
      for (const auto& user : users_) {
        const bool publishes = static_cast<const ShelfUser&>(*user).publishes();
        user->successes = publishes ? enough : 0;
      }
    }
    if (rested_ && satisfied()) return;
    happen();
  }
  if (report.violations.empty()) violate("I24", "not all readers have pulled what there is");
}

Report World::run() {
  if (!odds(4)) expect_progress(most_steps_before);
  healed_ = false;
  calm_ = false;
  say("faults");
  for (std::size_t step = 0; step < steps_with_faults && report.violations.empty(); ++step) {
    happen();
    if (odds(80)) hurt();
    if (odds(400)) cluster.clock().advance(milliseconds(cluster.random(600)));
    if (linked_ && odds(1000)) change_content();
  }
  heal();
  say("no more faults");
  if (report.violations.empty()) expect_progress(most_steps_after);
  if (report.violations.empty() && shelved_) expect_newest(most_steps_after);
  if (report.violations.empty()) finish();
  if (const std::string diverged = joint_pulls.divergence(); !diverged.empty()) {
    violate("I27", diverged);
  }
  return std::move(report);
}

void World::finish() {
  for (const auto& user : users_) user->close();
  const auto quiet = [&] {
    return std::ranges::all_of(users_, [](const auto& user) { return user->closed(); });
  };
  std::size_t quiet_for = 0;  // what a closed user's agent says reaches the store later
  for (std::size_t after = 0; after < 20'000 && report.violations.empty(); ++after) {
    happen();
    quiet_for = quiet() ? quiet_for + 1 : 0;
    if (quiet_for > 2'000) break;
  }
  for (const auto& user : users_) {
    if (!user->closed()) violate("I9", user->doing());
    if (const auto id = cluster.node(user->rank()).channel().owed()) {
      violate("I6", fmt::format("rank {}: command {} of session {} has no outcome", user->rank(),
                                id->sequence, id->session));
    }
  }
  checks.at_rest();
  claims.at_rest();
}

void World::lose_what_was_said(Rank rank) {
  const std::vector<Rank> told = checks.take_told();
  Node& node = cluster.node(rank);
  if (healed_ || !faults_.lines || !cluster.weather.lossy || !node.did_something()) return;
  std::uint64_t rarest = std::numeric_limits<std::uint64_t>::max();
  for (const Step step : node.last_steps()) rarest = std::min(rarest, ++reached_[step]);
  if (told.empty() || !cluster.loses(16 + rarest)) return;
  hit("drop", rank);
  node.disconnect(told[cluster.losses(told.size())]);
}

void World::happen() {
  const auto acted = cluster.step();
  checks.after_step(acted);
  claims.after_step(acted);
  if (acted) lose_what_was_said(*acted);
  if (odds(4)) users_[cluster.random(users_.size())]->act();
  for (const auto& user : users_) {
    user->pass_time();
    user->check_untouched();
    const SimulatedChannel& channel = cluster.node(user->rank()).channel();
    if (!channel.doubled.empty() || !channel.unknown.empty()) {
      violate("I6", fmt::format("rank {}: completed twice, or not accepted", user->rank()));
    }
  }
}

// Mostly one or two things are broken at a time: else nobody gets anywhere.
void World::hurt() {
  User& user = *users_[cluster.random(users_.size())];
  Node& node = cluster.node(user.rank());
  if (!node.alive()) return hurt_process(user, node);
  if (node.stopped()) return hurt_agent(user.rank(), node);
  if (!odds(3) && repair()) return;
  switch (cluster.random(4)) {
    case 0:
      return hurt_process(user, node);
    case 1:
      return hurt_agent(user.rank(), node);
    default:
      return hurt_lines(user.rank(), node);
  }
}

bool World::repair() {
  for (const auto& user : users_) {
    Node& node = cluster.node(user->rank());
    if (!node.alive()) return hurt_process(*user, node), true;
    if (node.stopped()) return hurt_agent(user->rank(), node), true;
  }
  Weather& weather = cluster.weather;
  const auto end_one = [&](auto& set) {
    if (set.empty()) return false;
    set.erase(set.begin());
    say("a line or a copy is well again");
    return true;
  };
  return end_one(weather.cut) || end_one(weather.far) || end_one(weather.late) ||
         end_one(weather.slow) || end_one(weather.full);
}

void World::hurt_process(User& user, Node& node) {
  if (!faults_.kills) return;
  checks.note_death(user.rank());
  if (!node.alive()) {
    hit("restart", user.rank());
    node.restart();
  } else if (odds(3)) {
    hit("kill of the agent", user.rank());
    node.kill();
    node.restart(false);
    user.lose_agent();
  } else if (odds(3)) {
    hit("kill of the worker", user.rank());
    node.replace_worker();
    user.die();
  } else {
    hit("kill", user.rank());
    node.kill();
    user.die();
  }
}

void World::hurt_agent(Rank rank, Node& node) {
  if (node.stopped()) {
    hit("resume", rank);
    return node.resume();
  }
  if (faults_.stops && !odds(4)) {
    hit("stop", rank);
    return node.stop();
  }
  if (!faults_.lapses) return;
  hit("lapse", rank);
  checks.note_lapse(rank);
  node.lapse();
}

void World::hurt_lines(Rank rank, Node& node) {
  Weather& weather = cluster.weather;
  const Rank other = users_[cluster.random(users_.size())]->rank();
  const auto toggle = [&](auto& set, const auto& what, const std::string& name) {
    if (set.erase(what) > 0) return say("rank {}: {} is over", rank, name);
    set.insert(what);
    hit(name, rank);
  };
  const auto kind = cluster.random(8);
  if (other == rank && kind != 0 && kind != 3 && kind != 4) return;
  if (kind == 0) {
    if (faults_.slow) toggle(weather.slow, rank, "slow copies");
  } else if (kind == 4) {
    if (faults_.slow) toggle(weather.full, rank, "full queue");
  } else if (!faults_.lines) {
    return;
  } else if (kind == 1) {
    toggle(weather.late, Weather::line(rank, other), "delay");
  } else if (kind == 2) {
    toggle(weather.cut, Weather::line(rank, other), "partition");
  } else if (kind == 3) {
    toggle(weather.far, rank, "partition from the store");
  } else if (kind == 5) {
    lose_list(rank);
  } else {
    hit("drop", rank);
    node.disconnect(other);
  }
}

// The store loses a list of tensors, as if the lease of the agent that wrote it had lapsed; other
// agents refer to the list still.
void World::lose_list(Rank rank) {
  std::vector<std::string> lists;
  for (const auto& [key, value] : cluster.store().values) {
    const auto parsed = parse_key(key);
    if (parsed && std::holds_alternative<ListKey>(*parsed)) lists.push_back(key);
  }
  if (lists.empty()) return;
  hit("loss of a list", rank);
  cluster.store().set(lists[cluster.random(lists.size())], std::nullopt);
}

void World::heal() {
  healed_ = true;
  Weather& weather = cluster.weather;
  weather.late.clear();
  weather.cut.clear();
  weather.far.clear();
  weather.slow.clear();
  weather.full.clear();
  for (const auto& user : users_) {
    Node& node = cluster.node(user->rank());
    node.resume();
    if (!node.alive()) node.restart();
  }
}

Report simulate(std::uint64_t seed, const Faults& faults) { return World(seed, faults).run(); }

}  // namespace tensorbus::bus::simulation
