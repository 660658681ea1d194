#include <algorithm>

#include "bus/client/client.h"
#include "bus/simulation/world.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

}  // namespace

Node& User::node() const { return world_.cluster.node(rank_); }

void User::for_each(const Shape& shape, std::span<std::int64_t> numbers,
                    const std::function<void(std::int64_t& number, std::int64_t i)>& visit) const {
  const Holding holding = side_.whole().holding(shape, rank_);
  auto number = numbers.begin();
  for (const Interval& rows : holding.dims[0]) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (const Interval& columns : holding.dims[1]) {
        for (std::int64_t column = columns.begin; column < columns.end; ++column) {
          visit(*number++, row * shape[1] + column);
        }
      }
    }
  }
}

std::string RoundUser::doing() const {
  constexpr const char* phases[] = {"init_pair", "register_tensors", "its transfers", "close",
                                    "close"};
  return fmt::format("rank {} of {} is stuck in {}, {}", rank_, side_.name,
                     phases[static_cast<std::size_t>(phase_)],
                     pending_.empty() ? "idle" : "its command is pending");
}

void RoundUser::die() {
  phase_ = Phase::init;
  pending_.clear();
  loan_.reset();
  after_error_.clear();
  last_read_.clear();
  last_version_ = 0;
}

void RoundUser::lose_agent() {
  const bool enlisting = phase_ == Phase::enlist && !pending_.empty();
  pending_.clear();
  after_error_.clear();
  if (phase_ == Phase::init) return;
  // The client moves its gate before a call raises, whoever has died.
  if (loan_ != nullptr) {
    loan_->gate().move_to(ticket_ + 1);
    spoil();
  }
  phase_ = Phase::enlist;
  if (!enlisting) return;
  // The user's call is still under way: the client asks the agent that has taken over.
  renew_registration(enlisting_, world_.cluster.random());
  ask_to_enlist();
}

void RoundUser::close() {
  if (phase_ != Phase::work && phase_ != Phase::enlist) return;
  for (const Pending& pending : pending_) {
    node().cancel(pending.id, {Code::cancelled, "the user closes"});
  }
  leave();
  phase_ = Phase::closed;
}

void RoundUser::leave() {
  world_.say("rank {}: close", rank_);
  world_.checks.note_leaving({rank_, life_}, opened_);
  phase_ = Phase::leave;
  pending_.push_back({node().submit(CloseBatch{"b", enlisting_.registration})});
}

void RoundUser::act() {
  if (!node().alive()) return;
  while (!pending_.empty()) {
    const Outcome* outcome = node().outcome(pending_.front().id);
    if (outcome == nullptr) return;
    const Outcome copy = *outcome;
    const Pending over = pending_.front();
    pending_.pop_front();
    on_outcome(over, copy);
  }
  switch (phase_) {
    case Phase::init:
      return init();
    case Phase::enlist:
      return enlist();
    case Phase::work:
      if (content_ != world_.content()) return leave();
      if ((world_.calm() || !world_.healed()) && world_.odds(60)) return leave();
      if (world_.two_way() && !world_.healed()) return world_.odds(2) ? send() : recv();
      return side_.sends ? send() : recv();
    case Phase::leave:
    case Phase::closed:
      return;
  }
}

void RoundUser::pass_time() {
  if (!node().alive()) return;
  const TimePoint now = world_.cluster.clock().now();
  const auto passed = [&](std::optional<TimePoint>& at) {
    if (!at || now < *at) return false;
    at.reset();
    return true;
  };
  for (Pending& pending : pending_) {
    if (node().outcome(pending.id) != nullptr) continue;
    if (passed(pending.expires_at)) world_.hit("deadline", rank_);
    if (passed(pending.cancels_at)) {
      world_.hit("cancel", rank_);
      end_early(pending, "the user lost interest");
    }
    if (passed(pending.due) && phase_ == Phase::enlist) {
      world_.checks.note_leaving({rank_, life_}, 0);
    }
    if (passed(pending.raises_at)) raise(pending);
    // This user alone would still wait for others with the tensors of before.
    if (phase_ == Phase::enlist && content_ != world_.content() && !pending.outdated) {
      pending.outdated = true;
      end_early(pending, "the user has other tensors now");
    }
  }
}

// A registration that is cancelled leaves before its first round.
void RoundUser::end_early(const Pending& pending, const std::string& why) {
  if (phase_ == Phase::enlist) world_.checks.note_leaving({rank_, life_}, 0);
  node().cancel(pending.id, {Code::cancelled, why});
}

// The call raises now, whatever the agent does: the memory is the worker's again.
void RoundUser::raise(const Pending& pending) {
  world_.hit("raise", rank_);
  loan_->gate().move_to(pending.ticket + 1);
  spoil();
  node().cancel(pending.id, {Code::timeout, "the worker's deadline passed"});
}

void RoundUser::submit(Pending pending, Command command, std::shared_ptr<Loan> loan,
                       Duration most) {
  const TimePoint now = world_.cluster.clock().now();
  const auto soon = [&] { return now + microseconds(world_.cluster.random(20'000)); };
  Deadline deadline = most == Duration::max() ? Deadline::never() : Deadline(now + most);
  if (world_.impatient()) {
    pending.expires_at = soon();
    deadline = Deadline(*pending.expires_at);
  } else if (world_.impatient()) {
    pending.cancels_at = soon();
  }
  if (deadline.at() != TimePoint::max()) pending.due = deadline.at();
  pending.since = world_.checks.steps();
  pending.id = node().submit(std::move(command), std::move(loan), deadline);
  pending_.push_back(pending);
}

void RoundUser::spoil() { std::ranges::fill(loan_->numbers(0), garbage); }

void RoundUser::on_outcome(const Pending& pending, const Outcome& outcome) {
  const Status& status = outcome.status;
  // One of several sends, whose first has failed already.
  if (pending.round != 0 && phase_ == Phase::enlist) return;
  switch (phase_) {
    case Phase::init:
      if (status.ok()) phase_ = Phase::enlist;
      break;
    case Phase::enlist:
      if (!status.ok()) world_.checks.note_leaving({rank_, life_}, 0);
      if (status.ok()) {
        phase_ = Phase::work;
        world_.checks.note_registered(enlisting_.registration, rank_, pending.since);
      } else if ((world_.calm() && status.code != Code::cancelled) ||
                 (status.code == Code::invalid_argument && !world_.linked())) {
        // All that users ask for fits. Tensors that change fit as soon as all have changed them; a
        // user that has come anew does not know that the others will change theirs.
        world_.violate("I9", fmt::format("rank {} cannot register: {}", rank_, status.message));
      }
      break;
    case Phase::work:
      if (pending.restages) return on_restaged(outcome);
      pending.direction == Direction::send ? on_send(pending, outcome) : on_recv(pending, outcome);
      return;
    case Phase::leave:
      phase_ = Phase::enlist;
      break;
    case Phase::closed:
      return;
  }
  world_.say("rank {}: {}", rank_, status.ok() ? "done" : status.message);
}

void RoundUser::init() {
  world_.say("rank {}: init_pair", rank_);
  submit({},
         InitPair{"p", side_.name, side_.remote, static_cast<std::int64_t>(side_.ranks.size()),
                  side_.layout},
         nullptr, seconds(2));
}

void RoundUser::enlist() {
  content_ = world_.content();
  shape_ = world_.shape_of(content_);
  read_here_ = 0;
  const Shape local = side_.whole().local_shape(shape_, rank_);
  after_error_.clear();
  enlisting_ = {};
  enlisting_.batch = "b";
  enlisting_.registration = world_.cluster.random();
  enlisting_.chunk_bytes = 16;
  enlisting_.verify = static_cast<Verify>(enlisting_.registration % 4);
  enlisting_.items = {
      {"p", "", Dtype::int64, local, plan::contiguous_strides(local), std::nullopt}};
  if (world_.linked()) name_tensor();
  bare_ = enlisting_.items.front().staged;
  loan_ = bare_ ? std::make_shared<SimulatedLoan>(
                      std::vector<SimulatedLoan::Tensor>{{Dtype::uint8, {0}, {}, {}}})
                : new_loan();
  spoil();
  ticket_ = 0;
  ask_to_enlist();
}

// As a link does with a DTensor.
void RoundUser::name_tensor() {
  const auto place = std::ranges::find(side_.ranks, rank_) - side_.ranks.begin();
  SideLayout own = side_.layout;
  own.coordinate = {place};
  own.mesh_id = side_.ranks.front();
  enlisting_.layouts = {own};
  BatchItem& item = enlisting_.items.front();
  item.name = fmt::format("tensor {}", content_);
  item.global_shape = shape_;
  item.layout = 0;
  item.staged = side_.sends && enlisting_.registration % 2 == 0;
  enlisting_.versioned = Versioned{side_.sends ? Direction::send : Direction::recv, last_version_};
}

void RoundUser::ask_to_enlist() {
  ++life_;
  accepted_ = 0;
  opened_ = 0;
  world_.say("rank {}: register_tensors, for the {}. time", rank_, life_);
  world_.checks.note_registration(enlisting_.registration, {rank_, life_});
  submit({}, enlisting_, loan_, seconds(2));
}

std::shared_ptr<SimulatedLoan> RoundUser::new_loan() const {
  return std::make_shared<SimulatedLoan>(std::vector<SimulatedLoan::Tensor>{
      {Dtype::int64, side_.whole().local_shape(shape_, rank_), {}, {}}});
}

// As a link that copies what it sends: the user lends memory when it knows what to lend, and other
// memory when readers want other types.
void RoundUser::restage() {
  next_loan_ = new_loan();
  std::ranges::fill(next_loan_->numbers(0), garbage);
  world_.say("rank {}: other memory", rank_);
  Pending pending;
  pending.restages = true;
  submit(pending, enlisting_, next_loan_, seconds(2));
}

void RoundUser::on_restaged(const Outcome& outcome) {
  if (outcome.status.code == Code::invalid_argument) phase_ = Phase::enlist;
  if (!outcome.status.ok()) return;
  loan_->gate().move_to(ticket_ + 1);
  spoil();
  loan_ = std::move(next_loan_);
  bare_ = false;
}

// One send, or several that wait in the queue with the same contents.
void RoundUser::send() {
  if (bare_ || (enlisting_.items.front().staged && world_.odds(8))) return restage();
  after_error_.clear();
  const std::int64_t step = accepted_ + 1;
  const Life life{rank_, life_};
  for_each(shape_, numbers(),
           [&](std::int64_t& number, std::int64_t i) { number = tag_of(step, life, i); });
  const std::uint64_t count = world_.odds(4) ? 2 + world_.cluster.random(2) : 1;
  for (std::uint64_t each = 0; each < count; ++each) {
    Pending pending{{}, Direction::send, ++ticket_, ++accepted_};
    world_.tags[{life, pending.round}] = step;
    if (count == 1 && world_.impatient()) {
      pending.raises_at =
          world_.cluster.clock().now() + microseconds(world_.cluster.random(20'000));
    }
    world_.say("rank {}: send {}", rank_, pending.round);
    submit(pending, Transfer{"b", Direction::send, std::nullopt, pending.ticket}, nullptr,
           patience());
  }
}

void RoundUser::on_send(const Pending& pending, const Outcome& outcome) {
  const Life life{rank_, life_};
  loan_->gate().move_to(pending_.empty() ? ticket_ + 1 : pending_.front().ticket);
  if (pending_.empty()) spoil();
  std::string readers;
  for (const auto& [rank, how] : outcome.readers) {
    readers += fmt::format(" {}:{}", rank, to_string(how));
  }
  const bool ok = outcome.status.ok();
  world_.say("rank {}: send {}: {}{}", rank_, pending.round,
             ok ? "read by" : outcome.status.message, readers);
  ++world_.report.counts[ok ? "sends" : "failed sends"];
  if (outcome.round != 0 && outcome.round != pending.round) {
    world_.violate(
        "I7", fmt::format("rank {}: send {} was round {}", rank_, pending.round, outcome.round));
  }
  for (const auto& [reader, how] : outcome.readers) {
    if (how != ReaderOutcome::read && world_.read.contains({life, pending.round, reader})) {
      world_.violate("I5", fmt::format("rank {} says that rank {} has not read round {}", rank_,
                                       reader, pending.round));
    }
  }
  world_.sent[{life, pending.round}] = outcome.readers;
  if (ok || !outcome.readers.empty()) opened_ = pending.round;
  check_send_went_on(pending, outcome);
  if (ok) {
    ++successes;
    last_version_ = outcome.version;
  } else if (outcome.status.message.find("register it again") != std::string::npos ||
             outcome.status.code == Code::invalid_argument) {
    phase_ = Phase::enlist;
  }
}

void RoundUser::check_send_went_on(const Pending& pending, const Outcome& outcome) {
  const auto until = world_.checks.goes_on_until({rank_, life_});
  if (until && pending.round > *until) return;
  if (until && outcome.status.message.find("register it again") != std::string::npos) {
    world_.violate("I20", fmt::format("rank {}: send {} failed, and all went on up to round {}",
                                      rank_, pending.round, *until));
  }
  if (!world_.calm()) return;
  const auto waits = world_.checks.waiting_for(side_.ranks.front(), pending.round);
  if (outcome.status.ok() && world_.linked() && waits) {
    world_.violate("I26", fmt::format("rank {}: send {} returned before rank {} had read", rank_,
                                      pending.round, *waits));
  }
  for (const auto& [reader, how] : outcome.readers) {
    if (how == ReaderOutcome::read || world_.checks.left_about(reader, pending.since)) continue;
    world_.violate("I20", fmt::format("rank {}: send {} was not read by rank {}, which is well",
                                      rank_, pending.round, reader));
  }
}

void RoundUser::check_recv_went_on(const Outcome& outcome) {
  if (!world_.calm() || outcome.status.code != Code::peer_lost) return;
  const auto until = world_.checks.goes_on_until(read_from_);
  if (!until || read_here_ == 0 || read_here_ >= *until) return;
  world_.violate("I20", fmt::format("rank {}: recv failed after round {}, and all went on up to {}",
                                    rank_, read_here_, *until));
}

void RoundUser::recv() {
  after_error_.clear();
  spoil();
  submit({{}, Direction::recv}, Transfer{"b", Direction::recv, std::nullopt, 0}, nullptr,
         patience());
}

// A send that answers a send must end, or both wait for ever; so must a recv of tensors that the
// others have changed.
Duration RoundUser::patience() const {
  const bool may_be_alone = world_.linked() || (world_.two_way() && !world_.healed());
  return may_be_alone ? Duration(seconds(1)) : Duration::max();
}

void RoundUser::check_untouched() {
  if (after_error_.empty() || std::ranges::equal(after_error_, loan_->numbers(0))) return;
  world_.violate("I14", fmt::format("rank {}: written after the error", rank_));
  after_error_.clear();
}

void RoundUser::on_recv(const Pending& pending, const Outcome& outcome) {
  if (outcome.status.ok()) {
    ++successes;
    ++world_.report.counts["recvs"];
    last_version_ = outcome.version;
    return check_received(outcome.round);
  }
  check_recv_went_on(outcome);
  world_.say("rank {}: recv: {}", rank_, outcome.status.message);
  ++world_.report.counts["failed recvs"];
  if (outcome.status.message.find("used up") == std::string::npos &&
      world_.checks.committed(rank_, outcome.round, pending.since)) {
    world_.violate(
        "I5", fmt::format("rank {}: a failed recv has used up round {}", rank_, outcome.round));
  }
  after_error_.assign(loan_->numbers(0).begin(), loan_->numbers(0).end());
  if (outcome.status.code == Code::invalid_argument) phase_ = Phase::enlist;
}

void RoundUser::check_received(std::int64_t round) {
  if (loan_->numbers(0).empty()) return;
  std::set<Life> sources;
  std::string wrong;
  for_each(shape_, numbers(), [&](std::int64_t number, std::int64_t i) {
    const Life life = life_of(number);
    const auto tag = world_.tags.find({life, round});
    const bool right = number < garbage && element_of(number) == i && tag != world_.tags.end() &&
                       tag->second == step_of(number);
    if (!right) {
      wrong += fmt::format(" element {} is element {} of rank {}, life {}, step {}", i,
                           element_of(number), life.rank, life.number, step_of(number));
    }
    sources.insert(life);
  });
  world_.say("rank {}: recv of round {}", rank_, round);
  if (!wrong.empty()) {
    return world_.violate("I1", fmt::format("rank {}, round {}:{}", rank_, round, wrong));
  }
  const auto generation = world_.checks.generation_of(*sources.begin());
  for (const Life& source : sources) {
    if (!generation || world_.checks.generation_of(source) != generation) {
      world_.violate("I1", fmt::format("rank {}, round {}: from two generations", rank_, round));
    }
    world_.read.insert({source, round, rank_});
    // From one source, also over several joinings: a reader that joins anew may get another
    // replica, which need not be as far.
    auto& last = last_read_[source];
    if (round <= last) {
      world_.violate("I2", fmt::format("rank {}: round {} of rank {} after round {}", rank_, round,
                                       source.rank, last));
    }
    last = round;
    read_here_ = round;
    read_from_ = source;
    const auto sent = world_.sent.find({source, round});
    if (sent == world_.sent.end()) continue;
    const auto told = sent->second.find(rank_);
    if (told == sent->second.end() || told->second != ReaderOutcome::read) {
      world_.violate("I5", fmt::format("rank {} has read round {}, rank {} was told otherwise",
                                       rank_, round, source.rank));
    }
  }
}

}  // namespace tensorbus::bus::simulation
