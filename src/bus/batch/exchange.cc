#include "bus/batch/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tensorbus::bus {
namespace {

Awaited awaited_by(const Queued& command, const Sending& sending, const Receiving& receiving) {
  if (command.direction == Direction::recv) {
    return {receiving.waits_for(), receiving.awaited(), receiving.being_read()};
  }
  return {sending.waits_for(command), sending.awaited(command)};
}

}  // namespace

void Exchange::accept(CommandId id, const Transfer& transfer, Deadline deadline) {
  const bool sends = transfer.direction == Direction::send;
  Queued queued{id, transfer.direction, transfer.ticket, deadline};
  queued.version = transfer.version;
  if (sends) queued.round = self_.next_round();
  queued.named = sends && transfer.version;
  queued.min_readers = transfer.min_readers;
  if (sends && self_.versioned()) sending_.number(queued);
  queue_.push_back(std::move(queued));
}

bool Exchange::cancel(CommandId id, const Status& why) {
  if (queries_.cancel(id, why) || publishing_.cancel(id, why) || pulling_.cancel(id, why)) {
    return true;
  }
  for (Queued& queued : queue_) {
    if (queued.id != id) continue;
    end_command(queued, why, false);
    return true;
  }
  return false;
}

bool Exchange::has(Direction direction) const noexcept {
  return std::ranges::find(queue_, direction, &Queued::direction) != queue_.end();
}

std::string Exchange::head() const {
  if (!queue_.empty()) return std::string(to_string(queue_.front().direction));
  return publishing_.current() + pulling_.head();
}

Awaited Exchange::awaited() const {
  if (!queue_.empty()) return awaited_by(queue_.front(), sending_, receiving_);
  return pulling_.empty() ? publishing_.awaited() : pulling_.awaited();
}

std::int64_t Exchange::answered() const noexcept {
  if (self_.shelved()) return publishing_.answered();
  const auto first = std::ranges::find(queue_, Direction::send, &Queued::direction);
  return first == queue_.end() ? self_.membership.last_round : first->round - 1;
}

void Exchange::begin_generation(const Generation& generation, const GroupPtr& group) {
  if (self_.shelved()) return publishing_.begin(generation, group);
  sending_.begin(generation, group);
  for (Queued& queued : queue_) {
    if (queued.direction == Direction::send && self_.versioned()) sending_.number(queued);
  }
}

void Exchange::end_generation(const Generation& ended, const Status& why) {
  publishing_.fail(why, ended.left, ended.after);
  if (!queue_.empty() && queue_.front().running && queue_.front().round > ended.after) {
    queue_.front().why = why;
    sending_.source()->revoke(ended.why);
    step_head();
  }
  fail(Direction::send, why, ended.left, ended.after);
  drop_source_if_unused();
}

void Exchange::drop_source_if_unused() {
  if (self_.shelved() && publishing_.idle()) self_.happen(SendsOver{});
  if (!sending_.active() || !self_.membership.stale() || sending_.source()->is_open()) return;
  if (has(Direction::send)) return;
  sending_.source()->end(self_.ended.message);
  sending_.drop_source();
  self_.happen(SendsOver{});
}

void Exchange::fail(Direction direction, const Status& why, std::optional<Rank> lost,
                    std::int64_t after) {
  Outcome outcome;
  outcome.status = why;
  if (lost && why.code == Code::peer_lost) outcome.lost = {*lost};
  bool first = true;
  std::erase_if(queue_, [&](const Queued& queued) {
    const bool busy = std::exchange(first, false) && queued.direction == Direction::recv &&
                      receiving_.running() != nullptr;
    if (queued.direction != direction || busy) return false;
    if (direction == Direction::send && queued.round <= after) return false;
    outcome.round = queued.round;
    self_.complete(queued.id, outcome);
    return true;
  });
}

void Exchange::close(const Status& why, Publishing::Parting parting) {
  publishing_.close(why, parting);
  pulling_.close(why);
  if (sending_.active()) {
    sending_.source()->end(why.message);
    if (!queue_.empty() && queue_.front().running) {
      queue_.front().why = why;
      step_head();
    }
    sending_.drop_source();
  }
  if (receiving_.reader() != nullptr) receiving_.reader()->leave(why, std::nullopt);
  const bool draining = receiving_.running() != nullptr && !queue_.empty() &&
                        queue_.front().direction == Direction::recv;
  while (queue_.size() > (draining ? 1u : 0u)) {
    self_.answer(queue_.back().id, why);
    queue_.pop_back();
  }
  queries_.close(why);
  sending_.drop_region();
}

void Exchange::step() {
  publishing_.step();
  pulling_.step();
  expire();
  sending_.step_herald();
  while (!queue_.empty()) {
    const std::size_t before = queue_.size();
    step_head();
    if (queue_.size() == before) break;
  }
}

void Exchange::step_head() {
  Queued& head = queue_.front();
  if (head.direction == Direction::send) {
    if (auto outcome = sending_.step(head, receiving_.reader())) finish_head(*std::move(outcome));
  } else if (auto outcome = receiving_.step(head)) {
    finish_head(*std::move(outcome));
    receiving_.finish();
  }
}

void Exchange::finish_head(Outcome outcome) {
  self_.complete(queue_.front().id, std::move(outcome));
  queue_.pop_front();
}

void Exchange::rest() {
  receiving_.rest(!queue_.empty());
  sending_.tell_over(answered());
}

// `queued` may be gone afterwards.
void Exchange::end_command(Queued& queued, const Status& why, bool at_deadline) {
  if (!queued.why.ok()) return;
  if (queued.running) {
    queued.why = why;
    sending_.source()->revoke(why.message);
    return step_head();
  }
  const bool head = &queued == &queue_.front();
  if (Recv* recv = receiving_.running();
      head && queued.direction == Direction::recv && recv != nullptr) {
    if (at_deadline) {
      recv->give_up(why);
    } else {
      recv->end(why);
    }
    return step_head();
  }
  Outcome outcome;
  outcome.status = why;
  outcome.round = queued.round;
  self_.complete(queued.id, std::move(outcome));
  std::erase_if(queue_, [&](const Queued& each) { return &each == &queued; });
}

void Exchange::expire() {
  for (std::size_t at = 0; at < queue_.size();) {
    Queued& queued = queue_[at];
    const std::size_t before = queue_.size();
    if (queued.deadline.at() <= self_.context.now && queued.why.ok()) {
      const std::string waits = at == 0 ? awaited().what : "the commands before it";
      end_command(queued,
                  {Code::timeout, fmt::format("{} of batch \"{}\" timed out: it waited for {}",
                                              to_string(queued.direction), self_.key.batch, waits)},
                  true);
    }
    if (queue_.size() == before) ++at;
  }
}

bool Exchange::busy() const {
  const bool prepares = sending_.preparing() && head() == to_string(Direction::send);
  return prepares || receiving_.checks() || pulling_.busy();
}

TimePoint Exchange::wake_at() const {
  TimePoint at = std::min({queries_.wake_at(), sending_.wake_at(), receiving_.wake_at(),
                           publishing_.wake_at(), pulling_.wake_at()});
  for (const Queued& queued : queue_) {
    if (queued.why.ok()) at = std::min(at, queued.deadline.at());
  }
  return at;
}

bool Exchange::is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  const Reader* reader = receiving_.reader();
  return sending_.is_for(connection, message) || pulling_.is_for(connection, message) ||
         (reader != nullptr && reader->is_for(connection, message));
}

void Exchange::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (queries_.on_message(connection, message)) return;
  if (sending_.on_message(connection, message)) return;
  pulling_.on_message(connection, message);
  Reader* reader = receiving_.reader();
  if (reader != nullptr && reader->knows(message.serial)) reader->on_message(connection, message);
}

void Exchange::on_up(const PeerConnectionPtr& connection) {
  sending_.on_up(connection);
  pulling_.on_up(connection);
  if (receiving_.reader() != nullptr) receiving_.reader()->on_up(connection);
}

void Exchange::on_lost(const PeerConnectionPtr& connection, const Status& why) {
  sending_.on_lost(connection);
  pulling_.on_lost(connection, why);
  Reader* reader = receiving_.reader();
  if (reader == nullptr) return;
  const bool was_started = reader->started();
  reader->on_lost(connection, why);
  // A recv that had not begun to read fails, too: the round that it waits for may never come.
  if (was_started && reader->idle() && !queue_.empty() &&
      queue_.front().direction == Direction::recv && reader->recv() == nullptr) {
    Outcome outcome;
    outcome.status = {Code::peer_lost, reader->trouble()};
    outcome.lost = reader->lost();
    finish_head(std::move(outcome));
  }
}

}  // namespace tensorbus::bus
