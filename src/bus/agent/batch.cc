#include "bus/agent/batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"

namespace tensorbus::bus {
namespace {

// For people who look at it. What is over sooner says so at its end.
constexpr Duration progress_every = std::chrono::milliseconds(20);

}  // namespace

Batch::Batch(Context& context, BatchKey key, std::uint64_t session, BatchMember record,
             std::shared_ptr<Loan> loan, KnownFailures disputed)
    : context_(context),
      key_(std::move(key)),
      session_(session),
      record_(std::move(record)),
      loan_(std::move(loan)),
      known_(context.catalog.failed(key_.batch)),
      disputed_(std::move(disputed)) {
  // Whoever comes after a refusal is told as well, once.
  for (const auto& refusal : context.catalog.refused(key_.batch)) {
    if (!disputed_.contains(refusal)) known_.erase(refusal);
  }
}

Batch::~Batch() = default;

bool Batch::over() const noexcept {
  return closing_ && !leaving_ && (reader_ == nullptr || reader_->recv() == nullptr);
}

void Batch::register_for(CommandId id, Deadline deadline) {
  registering_ = Waiting{id, deadline};
  context_.at(Step::registering);
}

void Batch::announce() {
  announced_ = true;
  context_.directory.publish(to_text(key_), encode(record_));
}

void Batch::publish_as(std::uint64_t incarnation) {
  record_.incarnation = incarnation;
  if (!announced_ || closing_) return;
  announce();
  if (shown_version_) publish_version(*shown_version_);
}

void Batch::complete(CommandId id, Outcome outcome) {
  if (!outcome.status.ok()) outcome.stale = stale();
  context_.channel.complete(id, outcome);
}

void Batch::answer(CommandId id, Status status) {
  Outcome outcome;
  outcome.status = std::move(status);
  complete(id, std::move(outcome));
}

void Batch::transfer(CommandId id, const Transfer& transfer, Deadline deadline) {
  const bool sends = transfer.direction == Direction::send;
  // A recv waits for a registration that is made again with a restarted agent.
  if (closing_ || (registering_ && sends)) {
    return answer(id, {Code::invalid_argument,
                       fmt::format("batch \"{}\" is not registered yet", key_.batch)});
  }
  if (const Status& possible = sends ? can_send_ : can_recv_; !possible.ok()) {
    return answer(id, possible);
  }
  if (sends && stale()) return answer(id, ended_);
  if (const Status refused = sends ? Status{} : sender_refuses(); !refused.ok()) {
    return answer(id, refused);
  }
  Queued queued{id, transfer.direction, transfer.ticket, deadline};
  queued.version = transfer.version;
  if (sends) queued.round = ++last_round_;
  queued.named = sends && transfer.version;
  queued.min_readers = transfer.min_readers;
  if (sends && record_.versioned) number(queued);
  queue_.push_back(std::move(queued));
}

// A send that names no version has the next one, whatever has become of those before it: ranks that
// are in step must not come to different ones.
void Batch::number(Queued& send) {
  if (send.named) {
    named_round_ = send.round;
    named_version_ = *send.version;
  }
  send.version = named_version_ + send.round - named_round_;
}

void Batch::query(CommandId id, const QuerySignal& query, Deadline deadline) {
  queries_.push_back({id, query, deadline});
  answer_queries();
}

void Batch::query_versions(CommandId id) const {
  Outcome outcome;
  outcome.versions = context_.catalog.versions(key_.batch);
  // What the store has not told us back yet.
  if (shown_version_) outcome.versions[key_.side][key_.rank] = *shown_version_;
  for (auto& [side, ranks] : outcome.versions) {
    for (auto& [rank, version] : ranks) {
      const auto read = read_versions_.find(rank);
      if (read != read_versions_.end()) version = std::max(version, read->second);
    }
    std::erase_if(ranks, [&, &of = side](const auto& entry) { return is_lost(of, entry.first); });
  }
  std::erase_if(outcome.versions, [](const auto& entry) { return entry.second.empty(); });
  context_.channel.complete(id, outcome);
}

// Its death was noticed here; the store still has its registration.
bool Batch::is_lost(const std::string& side, Rank rank) const {
  const auto now = context_.catalog.registration(BatchKey{key_.batch, side, rank});
  if (now == nullptr) return true;
  if (source_ != nullptr && source_->has_lost(rank, now->registration)) return true;
  if (reader_ == nullptr || joined_ == nullptr) return false;
  const auto then = joined_->members.find(rank);
  return then != joined_->members.end() && then->second == now &&
         std::ranges::find(reader_->lost(), rank) != reader_->lost().end();
}

void Batch::publish_version(std::int64_t version) {
  shown_version_ = version;
  context_.directory.publish(to_text(VersionKey{key_}),
                             encode(VersionRecord{record_.registration, version}));
}

void Batch::answer_queries() {
  std::erase_if(queries_, [&](const Query& each) {
    bool signal = false;
    const bool reads = reader_ != nullptr && reader_->published(each.query.round);
    if (each.query.round) {
      signal = reads || (source_ != nullptr && source_->highest_opened() >= *each.query.round);
    } else {
      signal = reads ||
               (source_ != nullptr && last_round_ > 0 && source_->highest_opened() == last_round_);
    }
    const bool late = each.deadline.at() <= context_.now;
    if (!signal && each.query.wait && !late) return false;
    Outcome outcome;
    outcome.signal = signal;
    if (!signal && each.query.wait) {
      outcome.status = {Code::timeout,
                        fmt::format("batch \"{}\": no round was published in time: {}", key_.batch,
                                    unpublished(each.query.round))};
    }
    complete(each.id, std::move(outcome));
    return true;
  });
}

// A batch goes both ways, and nobody knows which one the asker means: why nothing was published.
std::string Batch::unpublished(std::optional<std::int64_t> round) const {
  std::vector<std::string> reasons;
  if (reader_ != nullptr && reader_->started()) {
    reasons.push_back(fmt::format("rank {} has not offered {}",
                                  fmt::join(reader_->awaited(round), ", "),
                                  round ? fmt::format("round {}", *round) : "one"));
  } else if (!one_way(Direction::send)) {
    reasons.emplace_back("this rank has not joined the senders");
  }
  if (!one_way(Direction::recv)) {
    const std::int64_t own = round.value_or(std::max<std::int64_t>(last_round_, 1));
    reasons.push_back(last_round_ < own
                          ? fmt::format("this rank itself has not sent round {}", own)
                          : fmt::format("its own round {} waits for those before it", own));
  }
  return fmt::format("{}", fmt::join(reasons, ", and "));
}

std::int64_t Batch::answered() const noexcept {
  const auto first = std::ranges::find(queue_, Direction::send, &Queued::direction);
  return first == queue_.end() ? last_round_ : first->round - 1;
}

void Batch::close(std::optional<CommandId> id, const Status& why, Manner manner) {
  if (id) {
    if (close_id_) {
      answer(*id);
    } else {
      close_id_ = id;
    }
  }
  if (closing_) return;
  context_.at(Step::closing);
  const bool leaves = manner == Manner::orderly && source_ != nullptr;
  const std::int64_t last = answered();
  if (shown_version_) context_.directory.withdraw(to_text(VersionKey{key_}));
  if (registering_) answer(std::exchange(registering_, std::nullopt)->id, why);
  if (source_ != nullptr) {
    source_->end(why.message);
    if (!queue_.empty() && queue_.front().running) {
      queue_.front().why = why;
      step_send(queue_.front());
    }
    source_.reset();
    herald_.reset();
  }
  closing_ = true;
  if (reader_ != nullptr) reader_->leave(why, std::nullopt);
  // A recv that runs ends when its memory is free again.
  const bool draining = reader_ != nullptr && reader_->recv() != nullptr && !queue_.empty() &&
                        queue_.front().direction == Direction::recv;
  while (queue_.size() > (draining ? 1u : 0u)) {
    answer(queue_.back().id, why);
    queue_.pop_back();
  }
  for (const Query& each : std::exchange(queries_, {})) answer(each.id, why);
  region_.reset();
  if (leaves) {
    leave_generation(last);
  } else {
    withdraw();
  }
  step();
}

bool Batch::cancel(CommandId id, const Status& why) {
  if (registering_ && registering_->id == id) {
    answer(std::exchange(registering_, std::nullopt)->id, why);
    close(std::nullopt, why);
    return true;
  }
  if (std::erase_if(queries_, [&](const Query& each) { return each.id == id; }) > 0) {
    answer(id, why);
    return true;
  }
  for (Queued& queued : queue_) {
    if (queued.id != id) continue;
    end_command(queued, why, false);
    return true;
  }
  return false;
}

// `queued` may be gone afterwards.
void Batch::end_command(Queued& queued, const Status& why, bool at_deadline) {
  if (!queued.why.ok()) return;
  const bool head = &queued == &queue_.front();
  if (queued.running) {
    queued.why = why;
    source_->revoke(why.message);
    return step_send(queued);
  }
  if (head && queued.direction == Direction::recv && reader_ != nullptr &&
      reader_->recv() != nullptr) {
    if (at_deadline) {
      reader_->recv()->give_up(why);
    } else {
      reader_->recv()->end(why);
    }
    return step_recv(queued);
  }
  Outcome outcome;
  outcome.status = why;
  outcome.round = queued.round;
  complete(queued.id, std::move(outcome));
  std::erase_if(queue_, [&](const Queued& each) { return &each == &queued; });
}

void Batch::fail_queue(Direction direction, const Status& why, std::optional<Rank> lost,
                       std::int64_t after) {
  Outcome outcome;
  outcome.status = why;
  if (lost && why.code == Code::peer_lost) outcome.lost = {*lost};
  bool first = true;
  std::erase_if(queue_, [&](const Queued& queued) {
    const bool busy = std::exchange(first, false) && queued.direction == Direction::recv &&
                      reader_ != nullptr && reader_->recv() != nullptr;
    if (queued.direction != direction || busy) return false;
    if (direction == Direction::send && queued.round <= after) return false;
    outcome.round = queued.round;
    complete(queued.id, outcome);
    return true;
  });
}

void Batch::step() {
  preparing_ = false;
  expire();
  if (herald_ != nullptr) herald_->step();
  while (!queue_.empty()) {
    const std::size_t before = queue_.size();
    if (queue_.front().direction == Direction::send) {
      step_send(queue_.front());
    } else {
      step_recv(queue_.front());
    }
    if (queue_.size() == before) break;
  }
  if (reader_ != nullptr) {
    if (!closing_ && reader_->idle() && reader_->retry_at() <= context_.now) {
      reader_->retry();
      update();
    }
    reader_->step(false);
    if (queue_.empty() && reader_->recv() != nullptr && reader_->recv()->done()) {
      reader_->finish_recv();
    }
  }
  // Also those that ended before they began.
  if (herald_ != nullptr && herald_->is_first()) herald_->tell_ended(answered(), {});
  drop_source_if_unused();
  if (reader_ends_after_ && !closing_ && !reader_->goes_on(*reader_ends_after_)) update();
  answer_queries();
  if (registering_) check_registered();
  if (leaving_ && (context_.now >= leaves_by_ || !context_.store_is_away.ok())) withdraw();
  if (over() && close_id_) answer(*std::exchange(close_id_, std::nullopt));
}

void Batch::step_send(Queued& send) {
  if (!send.running) {
    if (source_ == nullptr || closing_) return;
    const auto refuse = [&](Status why) {
      Outcome outcome;
      outcome.round = send.round;
      outcome.status = std::move(why);
      complete(send.id, std::move(outcome));
      queue_.pop_front();
    };
    if (!loan_->gate().open(send.ticket)) {
      return refuse({Code::cancelled, "the worker took its memory back before the round began"});
    }
    if (!has_readers(send)) return;
    try {
      preparing_ = !source_->prepare(send.round);
    } catch (const Error& error) {
      return refuse(error.status());
    }
    if (preparing_) return;
    source_->open(send.round, send.ticket, send.version.value_or(0));
    if (record_.versioned) publish_version(*send.version);
    send.running = true;
  }
  if (!send.ended) {
    look_for_conflict(send);
    const auto endings = source_->finished();
    if (!endings) {
      if (time_to_tell(send)) {
        context_.channel.progress(send.id, source_->bytes_done(), source_->bytes_total());
      }
      return;
    }
    const auto both = std::ranges::find_if(
        *endings, [](const auto& entry) { return entry.second.word.mark == Mark::conflict; });
    if (send.why.ok() && both != endings->end()) send.why = both_send(send, both->first);
    send.ended = outcomes_of(*endings);
  }
  if (waits_for_first(send)) return;
  finish_send(send);
}

void Batch::finish_send(const Queued& send) {
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
  // What ended it before the first sender could tell: nobody knows whether all have read.
  if (!alone && !told && !send.why.ok()) outcome.status = send.why;
  outcome.version = send.version.value_or(0);
  outcome.bytes = source_->bytes_done();
  if (herald_ != nullptr && herald_->is_first()) herald_->tell_ended(send.round, readers);
  complete(send.id, std::move(outcome));
  queue_.pop_front();
}

bool Batch::has_readers(const Queued& send) {
  if (herald_ == nullptr || send.min_readers == 0) return true;
  if (!herald_->is_first()) return herald_->has_begun(send.round);
  if (source_->ready_for(send.round) < static_cast<std::size_t>(send.min_readers)) return false;
  herald_->tell_begun(send.round);
  return true;
}

// This rank's readers are done; of the others the first sender knows. Whoever has left the batch
// had told before.
bool Batch::waits_for_first(const Queued& send) const {
  if (herald_ == nullptr || herald_->is_first() || !send.why.ok()) return false;
  if (!ended_.ok() && herald_->is_alone()) return false;
  return !herald_->ending(send.round);
}

void Batch::look_for_conflict(Queued& send) {
  if (!send.why.ok()) return;
  std::optional<Rank> with = source_->in_conflict();
  if (reader_ != nullptr && reader_->started()) {
    for (const auto& [rank, round] : reader_->offering()) {
      if (!source_->conflict(rank)) continue;
      reader_->conflict(rank, round);
      with = rank;
    }
  }
  if (!with) return;
  send.why = both_send(send, *with);
  source_->revoke("both are sending");
}

Status Batch::both_send(const Queued& send, Rank with) const {
  return {Code::failed,
          fmt::format("round {} of batch \"{}\": rank {} is sending to this rank while this rank "
                      "sends to it; one of them has to receive first",
                      send.round, key_.batch, with)};
}

bool Batch::time_to_tell(Queued& queued) const noexcept {
  if (context_.now < queued.tell_progress_at) return false;
  const bool began = queued.tell_progress_at != TimePoint::min();
  queued.tell_progress_at = context_.now + progress_every;
  return began;
}

void Batch::step_recv(Queued& recv) {
  if (reader_ == nullptr) return;
  if (record_.versioned && !closing_ && reader_->recv() == nullptr && !take_version(recv)) return;
  reader_->step(!closing_);
  Recv* running = reader_->recv();
  if (running == nullptr) return;
  running->step();
  if (time_to_tell(recv)) {
    context_.channel.progress(recv.id, running->bytes_done(), running->bytes_total());
    running->tell_sources();
  }
  if (!running->done() || running->unexplained()) return;
  context_.at(Step::received);
  if (record_.versioned && running->outcome().status.ok()) {
    publish_version(running->outcome().version);
  }
  complete(recv.id, running->outcome());
  queue_.pop_front();
  reader_->finish_recv();
}

// Whether what is offered may be read by this recv. If not it is passed over, or the recv fails;
// `recv` may be gone then.
bool Batch::take_version(Queued& recv) {
  const auto offered = reader_->offered_versions();
  if (!offered || offered->empty()) return true;
  const auto by_version = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [low, high] = std::minmax_element(offered->begin(), offered->end(), by_version);
  Outcome outcome;
  if (low->second != high->second) {
    outcome.status = {Code::failed,
                      fmt::format("batch \"{}\": sender rank {} sends version {} while rank {} "
                                  "sends version {}; all send the same versions in the same order",
                                  key_.batch, low->first, low->second, high->first, high->second)};
    reader_->pass_over(Mark::skipped);
  } else if (recv.version && high->second < *recv.version) {
    // As good as read: the senders need not keep it for us.
    reader_->pass_over(Mark::read);
    return false;
  } else if (recv.version && high->second > *recv.version) {
    outcome.status = {Code::failed,
                      fmt::format("batch \"{}\": version {} was asked for, and the senders are at "
                                  "version {}; nothing was read",
                                  key_.batch, *recv.version, high->second)};
  } else {
    return true;
  }
  outcome.version = high->second;
  complete(recv.id, std::move(outcome));
  queue_.pop_front();
  return false;
}

std::string Batch::waits_for(const Queued& queued) const {
  if (queued.direction == Direction::send) {
    if (source_ == nullptr) return "the other senders, who have to register again";
    if (queued.ended) {
      return fmt::format("sender rank {}, which has not said that all readers have read",
                         herald_->first());
    }
    if (!queued.running && queued.min_readers > 0) {
      return fmt::format("readers: it wants {}, of this rank's {} have joined", queued.min_readers,
                         source_->ready_for(queued.round));
    }
    return fmt::format("reader rank {}, which has not read", fmt::join(source_->unread(), ", "));
  }
  if (reader_ == nullptr || !reader_->started()) {
    return "the senders, whom this rank has not joined" +
           (reader_ == nullptr || reader_->trouble().empty() ? "" : ": " + reader_->trouble());
  }
  if (reader_->recv() != nullptr) return "bytes that are still being read";
  return fmt::format("sender rank {}, which has not offered the round",
                     fmt::join(reader_->awaited(), ", "));
}

void Batch::expire() {
  if (registering_ && registering_->deadline.at() <= context_.now) {
    const Status late{Code::timeout, fmt::format("batch \"{}\" is not registered everywhere: {}",
                                                 key_.batch, missing_)};
    answer(std::exchange(registering_, std::nullopt)->id, late);
    close(std::nullopt, late);
  }
  for (std::size_t at = 0; at < queue_.size();) {
    Queued& queued = queue_[at];
    const std::size_t before = queue_.size();
    if (queued.deadline.at() <= context_.now && queued.why.ok()) {
      const std::string waits = at == 0 ? waits_for(queued) : "the commands before it";
      end_command(queued,
                  {Code::timeout, fmt::format("{} of batch \"{}\" timed out: it waited for {}",
                                              to_string(queued.direction), key_.batch, waits)},
                  true);
    }
    if (queue_.size() == before) ++at;
  }
}

TimePoint Batch::wake_at() const {
  const bool busy = (preparing_ && !queue_.empty()) ||
                    (reader_ != nullptr && reader_->recv() != nullptr && reader_->recv()->checks());
  if (busy) return context_.now;
  TimePoint at = registering_ ? registering_->deadline.at() : TimePoint::max();
  for (const Queued& queued : queue_) {
    if (queued.why.ok()) at = std::min(at, queued.deadline.at());
  }
  for (const Query& query : queries_) at = std::min(at, query.deadline.at());
  if (leaving_) at = std::min(at, leaves_by_);
  if (source_ != nullptr) at = std::min(at, source_->wake_at());
  if (herald_ != nullptr) at = std::min(at, herald_->wake_at());
  if (reader_ != nullptr && reader_->recv() != nullptr && reader_->recv()->unexplained()) {
    at = std::min(at, reader_->recv()->explained_by());
  }
  if (reader_ != nullptr && reader_->idle() && !closing_) at = std::min(at, reader_->retry_at());
  return at;
}

void Batch::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (source_ != nullptr && source_->knows(message.serial) &&
      message.generation == source_->generation()) {
    source_->on_message(connection, message);
  } else if (herald_ != nullptr && herald_->knows(message.serial)) {
    herald_->on_message(message);
  } else if (reader_ != nullptr && reader_->knows(message.serial)) {
    reader_->on_message(connection, message);
  }
}

void Batch::on_up(const PeerConnectionPtr& connection) {
  if (herald_ != nullptr) herald_->on_up(connection);
  if (reader_ != nullptr) reader_->on_up(connection);
}

void Batch::on_lost(const PeerConnectionPtr& connection, const Status& why) {
  if (source_ != nullptr) source_->on_lost(*connection);
  if (herald_ != nullptr) herald_->on_lost(connection);
  if (reader_ == nullptr) return;
  const bool was_started = reader_->started();
  reader_->on_lost(connection, why);
  // A recv that had not begun to read fails, too: the round it waits for may never come.
  if (was_started && reader_->idle() && !queue_.empty() &&
      queue_.front().direction == Direction::recv && reader_->recv() == nullptr) {
    Outcome outcome;
    outcome.status = {Code::peer_lost, reader_->trouble()};
    outcome.lost = reader_->lost();
    complete(queue_.front().id, std::move(outcome));
    queue_.pop_front();
  }
}

std::string Batch::current() const {
  if (registering_) return fmt::format("register_tensors \"{}\"", key_.batch);
  if (queue_.empty()) return "";
  return fmt::format("{} of batch \"{}\"", to_string(queue_.front().direction), key_.batch);
}

}  // namespace tensorbus::bus
