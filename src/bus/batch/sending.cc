#include "bus/batch/sending.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tensorbus::bus {

void Sending::begin(const Generation& generation, const GroupPtr& group) {
  Context& context = self_.context;
  group_ = group;
  exposure_.begin(*group_);
  source_ = std::make_unique<Source>(context, generation.number);
  if (self_.versioned()) {
    const Rank first = first_source(*group_);
    const auto place = context.catalog.member({group_->sides.begin()->first, first});
    herald_ = std::make_unique<Herald>(
        context, Follow{self_.key.batch, group_->name, self_.key.rank, self_.last_version()},
        generation.number, first,
        first == self_.key.rank
            ? std::nullopt
            : std::optional(place == nullptr ? fabric::Address() : place->address));
  }
  read_versions_.clear();
  named_round_ = 0;
  named_version_ = generation.version;
}

void Sending::drop_source() {
  source_.reset();
  herald_.reset();
}

void Sending::replace_memory(std::shared_ptr<Loan> loan, std::vector<bool> staged) {
  exposure_.replace(std::move(loan), std::move(staged), source_.get());
}

// A send that waits for readers can be read by whoever comes, whatever becomes of those who are
// here: its memory stays as it is while it waits.
std::vector<Dtype> Sending::stage_types(std::int64_t min_readers) {
  if (min_readers > 0) return {};
  return active() ? exposure_.wanted(*source_) : exposure_.stored();
}

// A send that names no version has the next one, whatever has become of the sends before it: ranks
// that are in step must not come to different versions.
void Sending::number(Queued& send) {
  if (send.named) {
    named_round_ = send.round;
    named_version_ = *send.version;
  }
  send.version = version_of(send.round);
}

std::optional<Outcome> Sending::step(Queued& send, Reader* reader) {
  preparing_ = false;
  if (!send.running) {
    if (!active() || self_.membership.closing()) return std::nullopt;
    if (auto refusal = begin_round(send)) return refusal;
    if (!send.running) return std::nullopt;
  }
  if (!send.ended && !end_round(send, reader)) return std::nullopt;
  if (waits_for_first(send)) return std::nullopt;
  return finish(send);
}

// The outcome of a send that cannot begin. A send that may begin later does not run yet.
std::optional<Outcome> Sending::begin_round(Queued& send) {
  const auto refuse = [&](Status why) {
    Outcome outcome;
    outcome.round = send.round;
    outcome.status = std::move(why);
    return outcome;
  };
  if (!self_.loan->gate().open(send.ticket)) {
    return refuse({Code::cancelled, "the worker took its memory back before the round began"});
  }
  if (!has_readers(send)) return std::nullopt;
  try {
    preparing_ = !source_->prepare(send.round);
  } catch (const Error& error) {
    return refuse(error.status());
  }
  if (preparing_) return std::nullopt;
  source_->open(send.round, send.ticket, send.version.value_or(0));
  exposure_.forget_replaced();
  if (self_.versioned()) note_version(*send.version);
  send.running = true;
  return std::nullopt;
}

// The first sender knows all readers, and the others do not: readers that register one after the
// other may have had nothing from this rank when it registered. So the first sender, which has
// waited for all readers, begins the first round, and later rounds that want a number of readers.
bool Sending::is_begun_by_first(const Queued& send) const {
  return herald_ != nullptr && (send.round == 1 || send.min_readers > 0);
}

// Whether a send may begin: the readers that it wants are there.
bool Sending::has_readers(const Queued& send) {
  if (!is_begun_by_first(send)) return true;
  if (!herald_->is_first()) {
    const bool nobody_tells = self_.membership.ends_after && herald_->is_alone();
    return nobody_tells || herald_->has_begun(send.round);
  }
  if (source_->ready_for(send.round) < static_cast<std::size_t>(send.min_readers)) return false;
  herald_->tell_begun(send.round);
  return true;
}

// Whether the open round is over for all readers of this rank.
bool Sending::end_round(Queued& send, Reader* reader) {
  look_for_conflict(send, reader);
  const auto endings = source_->finished();
  if (!endings) {
    if (send.telling.has_come(self_.context.now)) {
      self_.context.channel.progress(send.id, source_->bytes_done(), source_->bytes_total());
    }
    return false;
  }
  const auto both = std::ranges::find_if(
      *endings, [](const auto& entry) { return entry.second.word.mark == Mark::conflict; });
  if (send.why.ok() && both != endings->end()) send.why = both_send(send, both->first);
  send.ended = outcomes_of(*endings);
  return true;
}

void Sending::look_for_conflict(Queued& send, Reader* reader) {
  if (!send.why.ok()) return;
  std::optional<Rank> with = source_->in_conflict();
  if (reader != nullptr && reader->started()) {
    for (const auto& [rank, round] : reader->offering()) {
      if (!source_->conflict(rank)) continue;
      reader->conflict(rank, round);
      with = rank;
    }
  }
  if (!with) return;
  send.why = both_send(send, *with);
  source_->revoke("both are sending");
}

Status Sending::both_send(const Queued& send, Rank with) const {
  return {Code::failed,
          fmt::format("round {} of batch \"{}\": rank {} is sending to this rank while this rank "
                      "sends to it; one of them has to receive first",
                      send.round, self_.key.batch, with)};
}

// The readers of this rank are done; of the other readers the first sender knows. A sender that has
// left the batch told its followers before.
bool Sending::waits_for_first(const Queued& send) const {
  if (herald_ == nullptr || herald_->is_first() || !send.why.ok()) return false;
  if (self_.membership.ends_after && herald_->is_alone()) return false;
  return !herald_->ending(send.round);
}

Outcome Sending::finish(const Queued& send) {
  std::map<Rank, ReaderOutcome> readers = *send.ended;
  const bool alone = herald_ == nullptr || herald_->is_first();
  const auto told = alone ? std::nullopt : herald_->ending(send.round);
  for (const auto& [rank, how] : told.value_or(std::map<Rank, ReaderOutcome>())) {
    const auto [at, fresh] = readers.emplace(rank, how);
    if (!fresh) at->second = std::max(at->second, how);
  }
  for (const auto& [rank, how] : readers) {
    if (how == ReaderOutcome::read) read_versions_[rank] = send.version.value_or(0);
  }
  Outcome outcome = send_outcome(send.round, readers, send.why);
  // The send ended before the first sender could tell: nobody knows whether all readers have read.
  if (!alone && !told && !send.why.ok()) outcome.status = send.why;
  outcome.version = send.version.value_or(0);
  outcome.bytes = source_->bytes_done();
  if (herald_ != nullptr && herald_->is_first()) herald_->tell_ended(send.round, readers);
  return outcome;
}

std::string Sending::waits_for(const Queued& send) const {
  if (!active()) return "the other senders, who have to register again";
  if (send.ended) {
    return fmt::format("sender rank {}, which has not said that all readers have read",
                       herald_->first());
  }
  if (!send.running && send.min_readers == 0 && is_begun_by_first(send)) {
    return fmt::format("sender rank {}, which has not begun the round", herald_->first());
  }
  if (!send.running && send.min_readers > 0) {
    return fmt::format("readers: it wants {}, of this rank's {} have joined", send.min_readers,
                       source_->ready_for(send.round));
  }
  return fmt::format("reader rank {}, which has not read", fmt::join(source_->unread(), ", "));
}

std::vector<Rank> Sending::awaited(const Queued& send) const {
  if (!active()) return {};
  if (send.ended) return {herald_->first()};
  if (!send.running) return {};
  const std::set<Rank> unread = source_->unread();
  return {unread.begin(), unread.end()};
}

void Sending::tell_over(std::int64_t round) {
  if (herald_ != nullptr && herald_->is_first()) herald_->tell_ended(round, {});
}

void Sending::step_herald() {
  if (herald_ != nullptr) herald_->step();
}

TimePoint Sending::wake_at() const {
  TimePoint at = TimePoint::max();
  if (source_ != nullptr) at = std::min(at, source_->wake_at());
  if (herald_ != nullptr) at = std::min(at, herald_->wake_at());
  return at;
}

void Sending::note_version(std::int64_t version) {
  self_.moved_version = version;
  if (!herald_->is_first()) herald_->note_sent(version);
}

std::map<Rank, std::int64_t> Sending::known_versions() const {
  std::map<Rank, std::int64_t> known = read_versions_;
  if (source_ != nullptr) {
    for (const auto& [rank, version] : source_->read_now()) known[rank] = version;
  }
  if (herald_ != nullptr) known.merge(herald_->sent_versions());
  return known;
}

bool Sending::ask_versions() {
  return herald_ != nullptr && !herald_->is_first() && herald_->ask_versions();
}

bool Sending::knows(const PeerConnectionPtr& connection,
                    const AgentMessage& message) const noexcept {
  if (source_ == nullptr || message.generation != source_->generation()) return false;
  return source_->knows(message.serial) ||
         (herald_ != nullptr && herald_->knows(connection, message.serial));
}

bool Sending::is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  return (source_ != nullptr && source_->is_for(connection, message)) ||
         (herald_ != nullptr && herald_->knows(connection, message.serial));
}

bool Sending::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (source_ != nullptr && source_->knows(message.serial) &&
      message.generation == source_->generation()) {
    source_->on_message(connection, message);
    return true;
  }
  if (herald_ == nullptr || !herald_->knows(connection, message.serial)) return false;
  herald_->on_message(connection, message);
  return true;
}

void Sending::on_up(const PeerConnectionPtr& connection) {
  if (herald_ != nullptr) herald_->on_up(connection);
}

void Sending::on_lost(const PeerConnectionPtr& connection) {
  if (source_ != nullptr) source_->on_lost(*connection);
  if (herald_ != nullptr) herald_->on_lost(connection);
}

}  // namespace tensorbus::bus
