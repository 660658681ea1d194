#include "bus/batch/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tensorbus::bus {
namespace {

// Less than a client waits beyond its deadline for the agent's word.
constexpr Duration longest_withdrawal = std::chrono::milliseconds(500);

}  // namespace

Batch::Batch(Context& context, Shelves& shelves, BatchKey key, std::uint64_t session,
             BatchMember record, std::shared_ptr<Loan> loan, KnownFailures disputed)
    : self_{context, std::move(key), session, std::move(record), std::move(loan)},
      matching_(self_, std::move(disputed)),
      generations_(self_),
      exchange_(self_, shelves),
      registering_(self_, matching_, generations_, exchange_),
      following_(self_, matching_, generations_, exchange_) {}

bool Batch::over() const noexcept {
  return self_.membership.presence == Presence::gone && !exchange_.reads() && !is_still_seen();
}

bool Batch::is_still_seen() const noexcept {
  if (superseded_ || !self_.context.store_is_away.ok()) return false;
  return self_.context.now < withdrawn_by_ &&
         self_.context.catalog.has(self_.key.batch, self_.key.rank, self_.record.registration);
}

std::string Batch::current() const {
  if (registering_.waits()) return fmt::format("register_tensors \"{}\"", self_.key.batch);
  if (exchange_.empty()) return "";
  return fmt::format("{} of batch \"{}\"", exchange_.head(), self_.key.batch);
}

Awaited Batch::awaited() {
  if (registering_.waits()) return registering_.awaited();
  return exchange_.awaited();
}

void Batch::announce() {
  self_.happen(Announced{});
  self_.show_record();
}

void Batch::publish_as(std::uint64_t incarnation) {
  self_.record.incarnation = incarnation;
  if (self_.membership.presence != Presence::shown) return;
  self_.show_record();
  if (self_.shown_version) self_.show_version();
}

Batch::Replaced Batch::replace(std::shared_ptr<Loan> loan, std::vector<bool> staged) {
  if (!exchange_.empty() || registering_.waits() || self_.membership.closing())
    return Replaced::busy;
  if (!exchange_.sending().suits(*loan)) return Replaced::unsuitable;
  exchange_.sending().replace_memory(std::move(loan), std::move(staged));
  exchange_.receiving().replace_memory();
  exchange_.pulling().replace_memory();
  return Replaced::yes;
}

// A recv or a pull waits for a registration that is made again with a restarted agent.
// What is published waits for a registration that is made again with another agent.
Status Batch::refuses(Direction direction, bool shelved) const {
  const bool too_early = registering_.waits() && direction == Direction::send && !shelved;
  if (self_.membership.closing() || too_early) {
    return {Code::invalid_argument,
            fmt::format("batch \"{}\" is not registered yet", self_.key.batch)};
  }
  if (self_.shelved() == shelved && (!shelved || self_.one_way(direction))) return {};
  return {Code::invalid_argument,
          fmt::format("batch \"{}\" {}", self_.key.batch,
                      !self_.shelved() ? "has rounds: it is sent and received"
                      : !shelved       ? "has no rounds: it is published and pulled"
                                       : "goes the other way")};
}

void Batch::publish(CommandId id, const Publish& publish, Deadline deadline) {
  const Status refused = refuses(Direction::send, true);
  if (!refused.ok()) return self_.answer(id, refused);
  if (self_.membership.stale()) return self_.answer(id, self_.ended);
  exchange_.publishing().publish(id, publish, deadline);
}

void Batch::shelve(CommandId id, const Shelve& shelve) {
  const Status refused = refuses(Direction::send, true);
  if (!refused.ok()) return self_.answer(id, refused);
  exchange_.publishing().shelve(id, shelve);
}

void Batch::pull(CommandId id, const Pull& pull, Deadline deadline) {
  for (const Status& refused : {refuses(Direction::recv, true), matching_.can_recv(), misfit_}) {
    if (!refused.ok()) return self_.answer(id, refused);
  }
  exchange_.pulling().pull(id, pull, deadline);
}

void Batch::ask_newest(CommandId id) {
  const Status refused =
      refuses(self_.one_way(Direction::send) ? Direction::send : Direction::recv, true);
  if (!refused.ok()) return self_.answer(id, refused);
  Outcome outcome;
  outcome.version = std::max(exchange_.publishing().newest(), exchange_.pulling().newest());
  self_.complete(id, std::move(outcome));
}

void Batch::transfer(CommandId id, const Transfer& transfer, Deadline deadline) {
  const bool sends = transfer.direction == Direction::send;
  if (const Status refused = refuses(transfer.direction, false); !refused.ok()) {
    return self_.answer(id, refused);
  }
  const Status& possible = sends ? matching_.can_send() : matching_.can_recv();
  if (!possible.ok()) return self_.answer(id, possible);
  if (sends && self_.membership.stale()) return self_.answer(id, self_.ended);
  if (const Status refused = sends ? Status{} : matching_.sender_refuses(); !refused.ok()) {
    return self_.answer(id, refused);
  }
  exchange_.accept(id, transfer, deadline);
  // The reader may have waited for this.
  if (!sends && self_.versioned() && !exchange_.receiving().started()) update();
}

bool Batch::cancel(CommandId id, const Status& why) {
  if (!registering_.waits_for(id)) return exchange_.cancel(id, why);
  registering_.end(why);
  close(std::nullopt, why);
  return true;
}

void Batch::close(std::optional<CommandId> id, const Status& why, Manner manner) {
  if (id) {
    if (last_command_) {
      self_.answer(*id);
    } else {
      last_command_ = {*id, {}};
    }
  }
  if (self_.membership.closing()) return;
  self_.context.at(Step::closing);
  const bool shown = self_.membership.presence == Presence::shown;
  const std::int64_t last = exchange_.answered();
  if (self_.shown_version) self_.context.directory.withdraw(to_text(VersionKey{self_.key}));
  if (registering_.waits()) registering_.end(why);
  self_.happen(Closed{manner != Manner::lost ? std::optional(last) : std::nullopt});
  exchange_.close(why, manner == Manner::orderly ? Publishing::Parting::finished
                                                 : Publishing::Parting::back_soon);
  if (self_.membership.presence == Presence::leaving) {
    generations_.begin_leaving(superseded_ || (id && manner == Manner::back_soon));
    follow_leaving();
  } else if (shown) {
    withdraw();
  }
  step();
}

// The registration stays until the others know that this rank leaves, or they would take it for
// lost.
void Batch::follow_leaving() {
  const Sending& sending = exchange_.sending();
  const Publishing& publishing = exchange_.publishing();
  const std::int64_t version = self_.shelved() ? publishing.last_version()
                                               : sending.version_of(self_.membership.leaves_after);
  const GroupPtr& group = self_.shelved() ? publishing.group() : sending.group();
  if (generations_.tell_leaving(*group, version)) withdraw();
}

void Batch::withdraw() {
  self_.happen(Told{});
  if (superseded_ || !self_.record.failed.empty()) return;
  self_.context.directory.withdraw(to_text(self_.key));
  withdrawn_by_ = self_.context.now + longest_withdrawal;
}

void Batch::update() {
  if (self_.membership.presence == Presence::leaving) follow_leaving();
  if (self_.membership.presence != Presence::shown) return;
  try {
    look_at_groups();
    following_.follow(registering_.waits());
    const bool pulls = self_.shelved() && self_.one_way(Direction::recv);
    if (pulls && misfit_.ok()) exchange_.pulling().follow(matching_);
  } catch (const FailedElsewhere& error) {
    return fail_registration(error.status(), false);
  } catch (const Error& error) {
    return fail_registration(error.status(), true);
  }
  registering_.check();
}

// A batch that is registered goes on with the groups that it knows, and sees by them who has left.
void Batch::look_at_groups() {
  try {
    matching_.look(registering_.waits());
    misfit_ = {};
  } catch (const Error& error) {
    if (registering_.waits()) throw;
    misfit_ = error.status();
    exchange_.pulling().fail(misfit_);
  }
  if (!exchange_.has(Direction::recv)) return;
  if (const Status refused = matching_.sender_refuses(); !refused.ok()) {
    exchange_.fail(Direction::recv, refused, std::nullopt);
  }
}

void Batch::fail_registration(const Status& why, bool tell) {
  if (!registering_.waits()) return;
  matching_.dispute_all();
  if (tell) {
    // The others must know, and the ranks that register later.
    self_.record.failed = why.message;
    for (const auto& [rank, number] : matching_.disputed()) self_.record.unfit[number] = rank;
    self_.show_record();
  }
  registering_.end(why);
  close(std::nullopt, why);
}

void Batch::expire_registration() {
  const std::optional<Status> late = registering_.lateness();
  if (!late) return;
  last_command_ = {registering_.take(), *late};
  close(std::nullopt, *late);
}

Taken Batch::take(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (self_.shelved()) return Taken::no;
  Sending& sending = exchange_.sending();
  return std::visit(
      Overloaded{
          [&](const Subscribe&) { return sending.subscribe(connection, message, matching_); },
          [&](const Follow&) { return sending.follow(connection, message, matching_); },
          [](const OfSubscription auto&) { return Taken::no; },
      },
      message.body);
}

void Batch::step() {
  expire_registration();
  if (exchange_.publishing().is_late()) matching_.explain();
  exchange_.step();
  if (exchange_.receiving().tries_again() || exchange_.pulling().tries_again()) update();
  exchange_.rest();
  exchange_.drop_source_if_unused();
  if (exchange_.receiving().is_past_end()) update();
  exchange_.queries().answer();
  registering_.check();
  const bool gives_up =
      self_.context.now >= generations_.leaves_by() || !self_.context.store_is_away.ok();
  if (self_.membership.presence == Presence::leaving && gives_up) withdraw();
  if (!over() || !last_command_) return;
  const auto [id, status] = *std::exchange(last_command_, std::nullopt);
  self_.answer(id, status);
}

TimePoint Batch::wake_at() const {
  if (exchange_.busy()) return self_.context.now;
  TimePoint at = std::min(exchange_.wake_at(), registering_.deadline());
  if (self_.membership.presence == Presence::leaving) at = std::min(at, generations_.leaves_by());
  if (is_still_seen()) at = std::min(at, withdrawn_by_);
  return at;
}

}  // namespace tensorbus::bus
