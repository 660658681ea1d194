#include "bus/simulation/shelf_user.h"

#include <algorithm>

#include "bus/client/client.h"
#include "delta/change/bitmap.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

const Shape whole_shape{4, 6};

}  // namespace

std::string ShelfUser::doing() const {
  constexpr const char* phases[] = {"init_pair", "register_tensors", "its versions", "close",
                                    "close"};
  return fmt::format("rank {} of {} is stuck in {}, {}", rank_, side_.name,
                     phases[static_cast<std::size_t>(phase_)],
                     pending_ ? "its command is pending" : "idle");
}

// Nobody hears of the outcome of what is pending.
void ShelfUser::drop_pending() {
  pending_.reset();
  world_.joint_pulls.end(side_.name, rank_, world_.checks.steps(), std::nullopt);
}

void ShelfUser::die() {
  phase_ = Phase::init;
  drop_pending();
  filling_.reset();
  fetched_.reset();
  loan_.reset();
  after_error_.clear();
  last_version_ = last_generation_ = 0;
}

void ShelfUser::lose_agent() {
  const bool enlisting = phase_ == Phase::enlist && pending_;
  drop_pending();
  filling_.reset();
  fetched_.reset();
  after_error_.clear();
  if (phase_ == Phase::init) return;
  phase_ = Phase::enlist;
  if (!enlisting) return;
  // The user's call is still under way: the client asks the agent that has taken over.
  renew_registration(enlisting_, world_.cluster.random());
  ask_to_enlist();
}

void ShelfUser::close() {
  if (phase_ != Phase::work && phase_ != Phase::enlist) return;
  if (pending_) node().cancel(pending_->id, {Code::cancelled, "the user closes"});
  drop_pending();
  leave();
  phase_ = Phase::closed;
}

void ShelfUser::leave() {
  world_.say("rank {}: close", rank_);
  world_.checks.note_leaving(life(), answered_);
  phase_ = Phase::leave;
  filling_.reset();
  pending_ = Pending{
      node().submit(CloseBatch{"b", enlisting_.registration, world_.odds(2) && !world_.healed()})};
}

void ShelfUser::act() {
  if (!node().alive()) return;
  if (pending_) {
    const Outcome* outcome = node().outcome(pending_->id);
    if (outcome == nullptr) return;
    const Outcome copy = *outcome;
    const Pending over = *std::exchange(pending_, std::nullopt);
    on_outcome(over, copy);
    return;
  }
  switch (phase_) {
    case Phase::init:
      return init();
    case Phase::enlist:
      return enlist();
    case Phase::work:
      if (filling_) return fill();
      if (!world_.healed() && world_.odds(60)) return leave();
      if (publishes() && world_.resting()) return;
      return publishes() ? publish() : pull();
    case Phase::leave:
    case Phase::closed:
      return;
  }
}

void ShelfUser::pass_time() {
  if (!node().alive() || !pending_ || node().outcome(pending_->id) != nullptr) return;
  const TimePoint now = world_.cluster.clock().now();
  const auto passed = [&](std::optional<TimePoint>& at) {
    if (!at || now < *at) return false;
    at.reset();
    return true;
  };
  if (passed(pending_->expires_at)) world_.hit("deadline", rank_);
  const bool enlists = phase_ == Phase::enlist;
  if (passed(pending_->cancels_at)) {
    world_.hit("cancel", rank_);
    if (enlists) world_.checks.note_leaving(life(), 0);
    node().cancel(pending_->id, {Code::cancelled, "the user lost interest"});
  }
  if (passed(pending_->due)) {
    pending_->late_for = 1;
    if (enlists) world_.checks.note_leaving(life(), 0);
  }
  check_ends();
}

// Without faults a pull is over soon after its deadline, whatever the others do.
void ShelfUser::check_ends() {
  constexpr std::uint64_t soon = 20'000;
  if (pending_->late_for == 0 || !world_.healed()) return;
  if (++pending_->late_for != soon || phase_ != Phase::work || publishes()) return;
  world_.violate("I23", fmt::format("rank {}: a pull does not end", rank_));
}

void ShelfUser::submit(Pending pending, Command command, std::shared_ptr<Loan> loan,
                       Duration most) {
  const TimePoint now = world_.cluster.clock().now();
  const auto soon = [&] { return now + microseconds(world_.cluster.random(20'000)); };
  Deadline deadline(now + most);
  if (world_.impatient()) {
    pending.expires_at = soon();
    deadline = Deadline(*pending.expires_at);
  } else if (world_.impatient()) {
    pending.cancels_at = soon();
  }
  pending.due = deadline.at();
  pending.since = world_.checks.steps();
  pending.id = node().submit(std::move(command), std::move(loan), deadline);
  pending_ = pending;
}

void ShelfUser::init() {
  world_.say("rank {}: init_pair", rank_);
  InitPair pair{"p",
                side_.name,
                publishes() ? "" : side_.remote,
                static_cast<std::int64_t>(side_.ranks.size()),
                side_.layout,
                true};
  submit({}, std::move(pair), nullptr, seconds(2));
}

void ShelfUser::enlist() {
  const Shape local = side_.whole().local_shape(whole_shape, rank_);
  const std::size_t keep = publishes() ? world_.keep() : 0;
  std::vector<SimulatedLoan::Tensor> lent(std::max<std::size_t>(keep, 1),
                                          {Dtype::int64, local, {}, {}});
  if (publishes() && world_.deltas()) {
    lent.push_back({Dtype::int64, {delta::Bitmap::words_for(element_count(local))}, {}, {}});
  }
  loan_ = std::make_shared<SimulatedLoan>(std::move(lent));
  for (std::size_t slot = 0; slot < std::max<std::size_t>(keep, 1); ++slot) {
    std::ranges::fill(loan_->numbers(slot), garbage);
  }
  after_error_.clear();
  shelved_at_.clear();
  enlisting_ = {};
  enlisting_.batch = "b";
  enlisting_.registration = world_.cluster.random();
  enlisting_.role = side_.name;
  enlisting_.chunk_bytes = 16;
  enlisting_.items = {
      {"p", "w", Dtype::int64, local, plan::contiguous_strides(local), std::nullopt}};
  enlisting_.pairs = {"p"};
  enlisting_.versioned = Versioned{publishes() ? Direction::send : Direction::recv, 0, false,
                                   static_cast<std::int64_t>(keep), world_.deltas()};
  ask_to_enlist();
}

void ShelfUser::ask_to_enlist() {
  ++life_;
  answered_ = attempts_ = 0;
  fetched_.reset();
  changed_in_.assign(loan_->numbers(0).size(), 0);
  world_.say("rank {}: register_tensors, for the {}. time", rank_, life_);
  world_.checks.note_registration(enlisting_.registration, life());
  submit({}, enlisting_, loan_, seconds(2));
}

void ShelfUser::on_outcome(const Pending& pending, const Outcome& outcome) {
  switch (phase_) {
    case Phase::init:
      if (outcome.status.ok()) phase_ = Phase::enlist;
      break;
    case Phase::enlist:
      on_enlisted(pending, outcome);
      break;
    case Phase::work:
      return publishes() ? on_published(outcome) : on_pulled(pending, outcome);
    case Phase::leave:
      phase_ = Phase::enlist;
      break;
    case Phase::closed:
      return;
  }
  world_.say("rank {}: {}", rank_, outcome.status.ok() ? "done" : outcome.status.message);
}

void ShelfUser::on_enlisted(const Pending& pending, const Outcome& outcome) {
  if (outcome.status.ok()) {
    phase_ = Phase::work;
    world_.checks.note_registered(enlisting_.registration, rank_, pending.since);
    return;
  }
  world_.checks.note_leaving(life(), 0);
  if (outcome.status.code == Code::invalid_argument) {
    world_.violate("I9", fmt::format("rank {} cannot register: {}", rank_, outcome.status.message));
  }
}

void ShelfUser::publish() {
  shelving_ = false;
  ++attempts_;
  Publish command{"b",
                  std::nullopt,
                  std::nullopt,
                  static_cast<std::int64_t>(world_.cluster.random(30)),
                  world_.odds(2),
                  world_.delta_mode(),
                  world_.delta_memory()};
  submit({}, std::move(command), nullptr, seconds(1));
}

void ShelfUser::on_published(const Outcome& outcome) {
  if (!outcome.status.ok()) {
    world_.say("rank {}: publish: {}", rank_, outcome.status.message);
    ++world_.report.counts["failed publishes"];
    ++answered_;
    filling_.reset();
    const bool anew = outcome.stale || outcome.status.code == Code::invalid_argument;
    if (anew) phase_ = Phase::enlist;
    if (world_.calm() && outcome.status.code == Code::timeout) {
      world_.violate("I22", fmt::format("rank {}: {}", rank_, outcome.status.message));
    }
    return;
  }
  if (!shelving_) {
    filling_ = Filling{outcome.version, static_cast<std::size_t>(outcome.slot)};
    if (outcome.previous) filling_->previous = static_cast<std::size_t>(*outcome.previous);
    world_.tags[{life(), outcome.version}] = attempts_;
    check_gate_moved();
    train();
    std::ranges::fill(loan_->numbers(filling_->slot), garbage);
    return;
  }
  world_.say("rank {}: published version {}", rank_, filling_->version);
  ++world_.report.counts["publishes"];
  ++answered_;
  ++successes;
  last_version_ = filling_->version;
  shelved_at_[filling_->slot] = gate_of(filling_->slot);
  world_.shelved_versions.insert({life(), filling_->version});
  filling_.reset();
}

// No slot of which this user was told that it is complete is written to under the same ticket.
void ShelfUser::check_gate_moved() {
  if (loan_->numbers(filling_->slot).empty()) return;  // of no part of the tensor
  const std::uint64_t value = gate_of(filling_->slot);
  const auto before = shelved_at_.find(filling_->slot);
  if (value > (before == shelved_at_.end() ? 0 : before->second)) return;
  world_.violate("I25", fmt::format("rank {}: slot {} is given for version {}, and its gate stands "
                                    "at {} still",
                                    rank_, filling_->slot, filling_->version, value));
}

std::uint64_t ShelfUser::gate_of(std::size_t slot) const {
  std::uint64_t value = 0;
  const auto* memory = reinterpret_cast<const std::byte*>(loan_->numbers(slot).data());
  fabric::visit_gates(world_.cluster.hub(), memory,
                      [&](const fabric::Gate& gate) { value = std::max(value, gate.value()); });
  return value;
}

void ShelfUser::train() {
  auto& content = world_.contents[{life(), filling_->version}];
  std::size_t at = 0;
  for_each(whole_shape, loan_->numbers(filling_->slot), [&](std::int64_t&, std::int64_t i) {
    std::int64_t& changed = changed_in_[at++];
    if (!world_.deltas() || changed == 0 || (attempts_ * 5 + i * 3) % 7 < 2) changed = attempts_;
    content[i] = changed;
  });
}

void ShelfUser::compare() {
  if (!filling_->previous) return;
  const auto now = loan_->numbers(filling_->slot);
  const auto before = loan_->numbers(*filling_->previous);
  const auto words = loan_->numbers(loan_->tensors().size() - 1);
  std::ranges::fill(words, 0);
  for (std::size_t at = 0; at < now.size(); ++at) {
    if (now[at] != before[at]) words[at / 64] |= std::int64_t{1} << at % 64;
  }
}

// A few elements at a time, so that anything can happen meanwhile.
void ShelfUser::fill() {
  const auto numbers = loan_->numbers(filling_->slot);
  const std::size_t end =
      std::min(numbers.size(), filling_->written + 1 + world_.cluster.random(12));
  std::size_t at = 0;
  for_each(whole_shape, numbers, [&](std::int64_t& number, std::int64_t i) {
    if (at >= filling_->written && at < end) number = tag_of(changed_in_[at], life(), i);
    ++at;
  });
  filling_->written = end;
  if (end < numbers.size()) return;
  shelving_ = true;
  compare();
  submit({}, Shelve{"b", std::nullopt, filling_->version, true, filling_->previous.has_value()},
         nullptr, seconds(1));
}

void ShelfUser::pull() {
  after_error_.clear();
  const Pull command = next_pull();
  if (command.overwritten) std::ranges::fill(loan_->numbers(0), garbage);
  before_.assign(loan_->numbers(0).begin(), loan_->numbers(0).end());
  const bool applies = command.part == PullPart::apply;
  Pending pending;
  pending.pull = command;
  pending.plain = world_.resting() && !applies;
  pending.at_rest =
      world_.rested() && !applies && (!command.together || world_.pulls_what_is_there(side_));
  pending.dense_reads = world_.claims.dense_reads(rank_);
  if (command.together) world_.joint_pulls.begin(side_.name, rank_, world_.checks.steps());
  // Also longer than the patience with whoever does not answer.
  const bool patient = world_.deltas() && world_.cluster.loses(4);
  submit(pending, command, nullptr, seconds(patient ? 4 : 1));
}

Pull ShelfUser::next_pull() {
  Pull command{"b", std::nullopt};
  if (fetched_) {
    command.version = std::exchange(fetched_, std::nullopt);
    command.part = PullPart::apply;
    if (world_.cluster.loses(4)) command.verify = Verify::full;
    return command;
  }
  // Who promises to leave its tensors alone says when it has not.
  command.overwritten = !world_.deltas() || world_.odds(8);
  const auto kind = world_.resting() ? 0 : world_.cluster.random(4);
  if (kind == 2) command.newer_than = last_version_;
  if (kind == 3) command.version = std::max<std::int64_t>(1, last_version_ + 1);
  command.together = world_.together() && side_.ranks.size() > 1;
  if (world_.deltas()) choose_manner(command);
  return command;
}

void ShelfUser::choose_manner(Pull& pull) {
  if (world_.cluster.loses(4)) pull.verify = world_.odds(2) ? Verify::full : Verify::sample;
  if (world_.resting() || !world_.cluster.loses(4)) return;
  pull.part = PullPart::fetch;
  pull.scratch = world_.cluster.loses(2);
}

void ShelfUser::check_untouched() {
  if (after_error_.empty() || std::ranges::equal(after_error_, loan_->numbers(0))) return;
  world_.violate("I14", fmt::format("rank {}: written after the error", rank_));
  after_error_.clear();
}

void ShelfUser::on_pulled(const Pending& pending, const Outcome& outcome) {
  const bool together = pending.pull.together;
  std::optional<JointPulls::Result> result;
  if (outcome.status.ok()) result.emplace(outcome.round, outcome.version);
  if (together) world_.joint_pulls.end(side_.name, rank_, world_.checks.steps(), result);
  if (outcome.status.ok()) {
    if (together) ++world_.report.counts["joint pulls"];
    if (pending.pull.part == PullPart::fetch) return on_fetched(outcome);
    ++successes;
    ++world_.report.counts["pulls"];
    if (outcome.update && outcome.update->why == delta::Why::patch) {
      ++world_.report.counts["patched pulls"];
      if (together) ++world_.report.counts["joint patched pulls"];
      if (outcome.update->verified) ++world_.report.counts["verified pulls"];
    }
    return check_pulled(pending, outcome);
  }
  world_.say("rank {}: pull: {}", rank_, outcome.status.message);
  ++world_.report.counts[together ? "failed joint pulls" : "failed pulls"];
  after_error_.assign(loan_->numbers(0).begin(), loan_->numbers(0).end());
  check_failed(pending, outcome);
  if (outcome.absence == Absence::gone && !pending.pull.version && !together) {
    world_.violate("I23", fmt::format("rank {}: no version was named, and it is gone", rank_));
  }
  // What another rank of the side asked for ends the pull of all.
  const bool by_another = together && outcome.absence == Absence::gone && !pending.pull.version;
  if (pending.at_rest && !by_another) {
    world_.violate("I24", fmt::format("rank {}: {}", rank_, outcome.status.message));
  }
  if (outcome.status.code != Code::invalid_argument) return;
  // What ranks ask for together may exclude each other: their registrations are still there.
  if (together) return leave();
  phase_ = Phase::enlist;
}

void ShelfUser::on_fetched(const Outcome& outcome) {
  world_.say("rank {}: fetched version {} of generation {}", rank_, outcome.version, outcome.round);
  ++world_.report.counts["fetches"];
  fetched_ = outcome.version;
  if (std::ranges::equal(before_, loan_->numbers(0))) return;
  world_.violate("D3", fmt::format("rank {}: a fetch has written to the tensors", rank_));
}

// What says so has changed nothing; and so has whatever has read nothing but patches, unless it was
// ended while it applied them.
void ShelfUser::check_failed(const Pending& pending, const Outcome& outcome) {
  if (before_ == after_error_) return;
  const auto says = [&](std::string_view what) {
    return outcome.status.message.find(what) != std::string::npos;
  };
  const bool says_so = says("the tensors are as they were");
  const bool ended = outcome.status.code == Code::timeout ||
                     outcome.status.code == Code::cancelled || says("contents are undefined");
  const bool read_all = world_.claims.dense_reads(rank_) != pending.dense_reads;
  if (says_so || (world_.deltas() && !ended && !read_all)) {
    world_.violate("D3", fmt::format("rank {}: {}", rank_, outcome.status.message));
  }
}

std::string ShelfUser::lacks(std::int64_t generation, std::int64_t version,
                             std::optional<Life>* source) const {
  std::string wrong;
  std::optional<std::int64_t> step;
  if (loan_ == nullptr) return wrong;
  for_each(whole_shape, loan_->numbers(0), [&](std::int64_t& number, std::int64_t i) {
    const Life life = life_of(number);
    const auto in = world_.checks.generation_of(life);
    const auto tag = world_.tags.find({life, version});
    if (tag != world_.tags.end()) step = step.value_or(tag->second);
    if (number < garbage && element_of(number) == i && tag != world_.tags.end() &&
        tag->second == *step && in && in->second == generation &&
        world_.changed_in(life, version, i) == step_of(number)) {
      if (source != nullptr) *source = life;
      return;
    }
    wrong += fmt::format(" element {} is element {} of rank {}, life {}, step {}", i,
                         element_of(number), life.rank, life.number, step_of(number));
  });
  return wrong;
}

void ShelfUser::check_nothing_stale(const Outcome& outcome) {
  if (!outcome.update || outcome.update->why != delta::Why::patch) return;
  std::string stale;
  std::size_t at = 0;
  for_each(whole_shape, loan_->numbers(0), [&](std::int64_t& number, std::int64_t i) {
    const bool as_before = before_[at++] == number;
    const auto now = world_.changed_in(life_of(number), outcome.version, i);
    if (as_before && now && *now != step_of(number)) stale += fmt::format(" {}", i);
  });
  if (stale.empty()) return;
  world_.violate("D1", fmt::format("rank {}: a patch to version {} lacks elements{}", rank_,
                                   outcome.version, stale));
}

void ShelfUser::check_pulled(const Pending& pending, const Outcome& outcome) {
  world_.say("rank {}: pulled version {} of generation {}", rank_, outcome.version, outcome.round);
  const Pull& wish = pending.pull;
  const bool later = outcome.round > last_generation_;
  if ((wish.version && outcome.version != *wish.version) ||
      (wish.newer_than && !later && outcome.version <= *wish.newer_than)) {
    world_.violate("I23",
                   fmt::format("rank {}: version {} was not asked for", rank_, outcome.version));
  }
  if (outcome.round < last_generation_) {
    world_.violate("I24", fmt::format("rank {}: generation {} after generation {}", rank_,
                                      outcome.round, last_generation_));
  }
  std::optional<Life> source;
  const std::string wrong = lacks(outcome.round, outcome.version, &source);
  if (!wrong.empty()) check_nothing_stale(outcome);
  if (wrong.empty() && source) check_not_older(wish, outcome, *source);
  last_generation_ = outcome.round;
  last_version_ = outcome.version;
  last_life_ = life_;
  if (!wrong.empty()) {
    return world_.violate("I21", fmt::format("rank {}, version {} of generation {}:{}", rank_,
                                             outcome.version, outcome.round, wrong));
  }
  if (pending.at_rest && source) check_newest(outcome, *source);
}

// In one registration. What not all senders had may be gone before a newer one is there.
void ShelfUser::check_not_older(const Pull& wish, const Outcome& outcome, Life source) {
  const bool older = outcome.round == last_generation_ && outcome.version < last_version_;
  if (!older || wish.version || last_life_ != life_) return;
  if (!world_.have_all_published(source, last_version_)) return;
  world_.violate("I24", fmt::format("rank {}: version {} after version {}, which all had", rank_,
                                    outcome.version, last_version_));
}

void ShelfUser::check_newest(const Outcome& outcome, Life source) {
  const auto publisher = world_.publisher();
  if (publisher && world_.newest_of_all(*publisher) > 0) source = *publisher;
  const auto generation = world_.checks.generation_of(source);
  if (generation->second != outcome.round) {
    world_.violate("I24", fmt::format("rank {}: generation {}, and all publish in {}", rank_,
                                      outcome.round, generation->second));
  }
  const std::int64_t newest = world_.newest_of_all(source);
  if (outcome.version >= newest) return;
  world_.violate("I24", fmt::format("rank {}: version {}, and all have published {}", rank_,
                                    outcome.version, newest));
}

}  // namespace tensorbus::bus::simulation
