#include "bus/shelf/pulling.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tensorbus::bus {

void Pulling::follow(const Matching& matching) {
  joint_.follow(matching.own());
  shelves_are_there_ = matching.finds_shelves();
  if (!matching.matched() || !matching.can_recv().ok() || !shelves_are_there_) return;
  if (puller_ == nullptr) puller_ = std::make_shared<Puller>(self_.context, self_.loan);
  course_.set(matching.remote(), matching.own());
  const std::int64_t generation = matching.shelved_generation();
  const bool joined_this =
      puller_->generation() == generation && puller_->fingerprint() == course_.fingerprint();
  if (!puller_->idle() && !joined_this) {
    puller_->leave({Code::peer_lost, "there is a newer shelf"});
    puller_->retry();
  }
  if (puller_->idle() && puller_->retry_at() == TimePoint::max()) {
    puller_->join(course_.plan(generation, matching.shelves()));
  }
}

bool Pulling::tries_again() {
  if (puller_ == nullptr || self_.membership.closing() || !puller_->idle()) return false;
  if (puller_->retry_at() > self_.context.now) return false;
  puller_->retry();
  return true;
}

void Pulling::replace_memory() {
  if (puller_ == nullptr) return;
  puller_->replace(self_.loan, course_.targets());
}

void Pulling::pull(CommandId id, const Pull& pull, Deadline deadline) {
  queue_.push_back({id, pull, deadline});
}

// A version of a later generation is newer, whatever its number: whoever resumed counts as it
// likes. Otherwise nobody goes back to what is older than the last, unless that was only at the
// sources of this rank: another sender may have given it up, and then it is gone before a newer one
// is there.
Wanted Pulling::wanted_by(const Pull& pull) const {
  const bool later = read_in_ != 0 && puller_->generation() > read_in_;
  if (later) return {pull.version, 0};
  return {pull.version, std::max(pull.newer_than.value_or(0), puller_->lasting(last_read_) - 1)};
}

std::optional<Outcome> Pulling::step_head() {
  if (puller_ == nullptr) return std::nullopt;
  Queued& head = queue_.front();
  if (VersionRead* read = puller_->reading(); read != nullptr && !head.why.ok()) {
    if (!read->done()) return std::nullopt;
    return read->outcome();
  }
  if (!std::exchange(head.begun, true)) {
    if (std::exchange(head.pull.overwritten, false)) puller_->forget_content();
    puller_->begin();
  }
  puller_->set_manner(manner_of(head.pull));
  const Wanted wanted = wanted_by(head.pull);
  auto outcome = head.pull.part == PullPart::apply
                     ? puller_->step_apply(head.pull.version.value_or(0))
                 : is_joint(head.pull) ? joint_.step(*puller_, wanted)
                                       : puller_->step(wanted);
  if (const VersionRead* read = puller_->reading();
      read != nullptr && head.telling.has_come(self_.context.now)) {
    self_.context.channel.progress(head.id, read->bytes_done(), read->bytes_total());
  }
  if (outcome || started() || shelves_are_there_ || !puller_->finished_after()) return outcome;
  if (reads() || joint_.has_voted()) return outcome;
  // The senders have closed, and what they had is gone with their agents.
  outcome.emplace().absence = Absence::ended;
  return outcome;
}

Manner Pulling::manner_of(const Pull& pull) const noexcept {
  return {pull.part == PullPart::fetch, pull.scratch, is_joint(pull), pull.verify};
}

void Pulling::tell_untouched(Outcome& outcome, bool touched) const {
  if (!self_.record.versioned->delta || outcome.status.ok() || touched) return;
  outcome.status.message += "; the tensors are as they were";
}

void Pulling::finish_head(Outcome outcome) {
  self_.context.at(Step::received);
  if (outcome.absence != Absence::none && outcome.status.ok()) explain_absence(outcome);
  joint_.end(outcome);
  tell_untouched(outcome, puller_->has_touched());
  const bool fetches = queue_.front().pull.part == PullPart::fetch;
  if (outcome.status.ok() && !fetches) {
    read_in_ = outcome.round;
    last_read_ = outcome.version;
  }
  if (queue_.front().pull.overwritten) puller_->forget_content();
  const CommandId id = queue_.front().id;
  queue_.pop_front();
  if (!fetches || !outcome.status.ok()) puller_->forget_fetched();
  puller_->rest();
  self_.complete(id, std::move(outcome));
}

void Pulling::explain_absence(Outcome& outcome) const {
  const Pull& pull = queue_.front().pull;
  outcome.status.code = Code::failed;
  if (outcome.absence == Absence::gone) {
    outcome.status.message = fmt::format(
        "batch \"{}\": version {} is not there any more: it was recycled, or never published",
        self_.key.batch, pull.version.value_or(0));
    return;
  }
  outcome.version = puller_->finished_after().value_or(0);
  outcome.status.message =
      fmt::format("batch \"{}\": side \"{}\" has ended after version {}{}", self_.key.batch,
                  course_.senders()->name.side, outcome.version,
                  started() ? "" : ", and what it published is gone with its agents");
}

void Pulling::step() {
  expire();
  while (!queue_.empty()) {
    auto outcome = step_head();
    if (!outcome) break;
    finish_head(*std::move(outcome));
  }
  joint_.rest();
}

// Only the head of the queue may be reading; the memory that the head borrows is free again when
// its outcome comes.
void Pulling::end(std::size_t at, const Status& why) {
  Queued& queued = queue_[at];
  if (!queued.why.ok()) return;
  Outcome outcome;
  outcome.status = why;
  if (at == 0) joint_.end(outcome);
  if (at == 0 && reads() && !puller_->reading()->done()) {
    queued.why = why;
    return puller_->reading()->end(why);
  }
  // Somebody has written to the tensors, whatever becomes of the pull that says so.
  if (queued.pull.overwritten && at > 0) queue_.front().pull.overwritten = true;
  if (queued.pull.overwritten && at == 0 && puller_ != nullptr) puller_->forget_content();
  const bool begun = at == 0 && queued.begun;
  tell_untouched(outcome, at != 0 || (begun && puller_->has_touched()));
  if (begun) {
    puller_->forget_fetched();
    puller_->rest();
  }
  self_.complete(queued.id, std::move(outcome));
  queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(at));
}

bool Pulling::cancel(CommandId id, const Status& why) {
  const auto found = std::ranges::find(queue_, id, &Queued::id);
  if (found == queue_.end()) return false;
  end(static_cast<std::size_t>(found - queue_.begin()), why);
  return true;
}

void Pulling::fail(const Status& why) {
  for (std::size_t at = queue_.size(); at-- > 0;) end(at, why);
}

void Pulling::close(const Status& why) {
  fail(why);
  joint_.close();
  if (puller_ != nullptr) puller_->leave(why);
}

void Pulling::expire() {
  for (std::size_t at = queue_.size(); at-- > 0;) {
    const Queued& queued = queue_[at];
    if (queued.deadline.at() > self_.context.now || !queued.why.ok()) continue;
    const std::string waits = at == 0 ? waits_for(queued.pull) : "the commands before it";
    end(at, {Code::timeout, fmt::format("pull of batch \"{}\" timed out: it waited for {}",
                                        self_.key.batch, waits)});
  }
}

Awaited Pulling::awaited() const {
  const Pull& pull = queue_.front().pull;
  Awaited awaited{waits_for(pull), {}};
  if (is_joint(pull) && (started() || joint_.has_voted())) awaited.ranks = joint_.awaited();
  if (awaited.ranks.empty() && started() && !reads()) {
    awaited.ranks = puller_->late(wanted_by(pull));
  }
  if (reads()) awaited.read = puller_->reading()->being_read();
  return awaited;
}

std::string Pulling::waits_for(const Pull& pull) const {
  if (is_joint(pull) && (started() || joint_.has_voted())) {
    if (const std::string others = joint_.waits_for(); !others.empty()) return others;
  }
  if (!started()) {
    const std::string why = trouble();
    return "the senders, whose shelves this rank has not joined" +
           (why.empty() ? "; with embedded agents they end with their processes" : ": " + why);
  }
  if (reads()) return "bytes that are still being read";
  if (pull.version) return fmt::format("version {}, which not all senders have", *pull.version);
  if (pull.newer_than) return fmt::format("a version above {}", *pull.newer_than);
  return "the first version that all senders have";
}

TimePoint Pulling::wake_at() const {
  TimePoint at = joint_.wake_at();
  for (const Queued& queued : queue_) {
    if (queued.why.ok()) at = std::min(at, queued.deadline.at());
  }
  if (reads()) at = std::min(at, puller_->reading()->wake_at());
  if (puller_ != nullptr && puller_->idle() && !self_.membership.closing()) {
    at = std::min(at, puller_->retry_at());
  }
  return at;
}

bool Pulling::is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  return (puller_ != nullptr && puller_->is_for(connection, message)) ||
         joint_.is_for(connection, message);
}

void Pulling::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  joint_.on_message(connection, message);
  if (puller_ != nullptr && puller_->knows(message.serial)) {
    puller_->on_message(connection, message);
  }
}

void Pulling::on_up(const PeerConnectionPtr& connection) {
  if (puller_ != nullptr) puller_->on_up(connection);
}

void Pulling::on_lost(const PeerConnectionPtr& connection, const Status& why) {
  joint_.on_lost(connection, why);
  if (puller_ != nullptr) puller_->on_lost(connection, why);
}

}  // namespace tensorbus::bus
