#include "bus/round/recv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

constexpr Duration patience_with_senders = std::chrono::milliseconds(500);
// Every reader of a large group wakes every one of its sources so often.
constexpr Duration tell_sources_every = std::chrono::milliseconds(50);
constexpr const char* undefined = "; the tensors' contents are undefined until the next recv";

}  // namespace

Recv::Recv(Context& context, std::int64_t generation, std::uint64_t serial, std::int64_t round,
           std::int64_t version, std::vector<RecvCommit> commits, std::shared_ptr<Loan> loan)
    : context_(context),
      generation_(generation),
      serial_(serial),
      round_(round),
      commits_(std::move(commits)),
      loan_(std::move(loan)) {
  outcome_.round = round;
  outcome_.version = version;
}

void Recv::start(std::vector<RecvPart> parts, std::vector<std::shared_ptr<GroupFold>> folds,
                 std::shared_ptr<const std::vector<std::string>> labels) {
  labels_ = std::move(labels);
  state_ = next(state_, RecvEvent::all_offered).value();
  context_.at(Step::reading);
  phase_began_at_ = context_.moment();
  parts_ = std::move(parts);
  note_sources();
  folds_ = std::move(folds);
  running_.resize(parts_.size());
  for (const RecvPart& part : parts_) bytes_total_ += part.stream->payload_bytes;
  for (std::size_t at = 0; at < parts_.size() && state_ == RecvState::reading; ++at) {
    const RecvPart& part = parts_[at];
    const auto id =
        context_.operations.add([self = shared_from_this(), at](const fabric::Completion& done) {
          self->on_read(at, done);
        });
    try {
      context_.fabric.read({part.stream,
                            part.number,
                            part.sources,
                            {part.targets.begin(), part.targets.end()},
                            loan_->lender()},
                           id, Deadline::never());
      running_[at] = id;
      ++left_;
    } catch (...) {
      context_.operations.forget(id);
      fail_here(current_exception_status());
    }
  }
  if (state_ == RecvState::reading && left_ == 0) check_or_commit();
}

std::int64_t Recv::end_phase() noexcept {
  const TimePoint moment = context_.moment();
  return (moment - std::exchange(phase_began_at_, moment)).count();
}

void Recv::note_sources() {
  std::vector<Rank>& sources = outcome_.timing.sources;
  for (const RecvPart& part : parts_) {
    const std::vector<Rank>& ranks = part.stream->source.ranks;
    sources.insert(sources.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(sources);
  sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
}

std::optional<BeingRead> Recv::being_read() const {
  if (state_ != RecvState::reading && state_ != RecvState::committing) return std::nullopt;
  return BeingRead{outcome_.version, outcome_.timing.sources};
}

void Recv::check_or_commit() {
  outcome_.timing.read = end_phase();
  checked_ = 0;
  step();
}

void Recv::step() {
  if (!checks()) return;
  try {
    std::int64_t budget = Digest::at_once;
    for (; *checked_ < parts_.size(); ++*checked_) {
      const RecvPart& part = parts_[*checked_];
      if (part.digest != nullptr && !part.digest->work(budget)) return;
      compare(part);
    }
    for (const auto& fold : folds_) {
      if (!fold->work(budget)) return;
    }
  } catch (...) {
    return fail_here(current_exception_status());
  }
  commit();
}

void Recv::compare(const RecvPart& part) {
  if (part.digest == nullptr || part.digest->sums() == part.sums) return;
  damaged_ = true;
  const Rank from = part.stream->source.ranks.front();
  if (part.sums.size() != part.digest->sums().size()) {
    throw Error(Code::failed, fmt::format("rank {} sent no checksums, and rank {} wants them", from,
                                          context_.rank));
  }
  std::vector<std::string> wrong;
  for (std::size_t at = 0; at < part.sums.size(); ++at) {
    if (part.sums[at] == part.digest->sums()[at]) continue;
    wrong.push_back(labels_->at(part.stream->parts[at].source_tensor));
  }
  throw Error(
      Code::failed,
      fmt::format("what rank {} has read from rank {} is not what was offered, in {}: the "
                  "sender changed it before the round was over, or it was damaged on the way",
                  context_.rank, from, fmt::join(wrong, ", ")));
}

void Recv::on_read(std::size_t part, const fabric::Completion& completion) {
  running_[part].reset();
  --left_;
  if (completion.status.ok()) {
    bytes_done_ += parts_[part].stream->payload_bytes;
    const auto path = fabric::path_to(parts_[part].targets, *parts_[part].sources.front().region);
    outcome_.bytes_by_path[std::string(path)] += parts_[part].stream->payload_bytes;
    outcome_.timing.slowest = parts_[part].stream->source.ranks.front();
  } else if (state_ == RecvState::reading) {
    const Status& why = completion.status;
    if (why.code == Code::peer_lost) {
      for (const fabric::Source& source : parts_[part].sources) {
        for (const RecvCommit& commit : commits_) {
          if (commit.source.peer == source.peer && !source.peer->up()) {
            outcome_.lost.push_back(commit.rank);
          }
        }
      }
    }
    if (why.code == Code::withdrawn) await_explanation();
    fail({why.code, fmt::format("round {}: {}{}", round_, why.message, undefined)},
         RecvEvent::failed);
    return;
  }
  if (left_ > 0) return;
  if (state_ == RecvState::draining) {
    state_ = next(state_, RecvEvent::drained).value();
  } else if (state_ == RecvState::reading) {
    check_or_commit();
  }
}

std::int64_t Recv::bytes_of(std::size_t part) const noexcept {
  const std::int64_t all = parts_[part].stream->payload_bytes;
  return running_[part] ? std::min(context_.fabric.bytes_read(*running_[part]), all) : all;
}

std::int64_t Recv::bytes_done() const noexcept {
  std::int64_t bytes = bytes_done_;
  for (std::size_t at = 0; at < parts_.size(); ++at) {
    if (running_[at]) bytes += bytes_of(at);
  }
  return bytes;
}

void Recv::tell_sources() {
  const std::int64_t bytes = bytes_done();
  if (state_ != RecvState::reading || context_.now < tell_at_ || bytes == bytes_told_) return;
  tell_at_ = context_.now + tell_sources_every;
  bytes_told_ = bytes;
  std::map<const fabric::Peer*, std::int64_t> read_from;
  for (std::size_t at = 0; at < parts_.size(); ++at) {
    for (const fabric::Source& source : parts_[at].sources) {
      read_from[source.peer.get()] += bytes_of(at);
    }
  }
  for (const RecvCommit& commit : commits_) {
    context_.connections.send(*commit.connection, generation_, serial_,
                              Moved{round_, read_from[commit.source.peer.get()]});
  }
}

// Patience begins with the next step: the time of this step may be from before the agent stood
// still.
bool Recv::unexplained() noexcept {
  if (!taken_back_at_) return false;
  if (!explained_by_ && context_.now > *taken_back_at_) {
    explained_by_ = context_.now + patience_with_senders;
  }
  return !explained_by_ || context_.now < *explained_by_;
}

TimePoint Recv::explained_by() const noexcept {
  return explained_by_.value_or(*taken_back_at_ + patience_with_senders);
}

void Recv::withdrawn(Rank rank, const std::string& why) {
  taken_back_at_.reset();
  if (state_ != RecvState::reading) return;
  fail({Code::withdrawn,
        fmt::format("round {}: rank {} withdrew it ({}){}", round_, rank, why, undefined)},
       RecvEvent::failed);
}

void Recv::lost(const Status& why, Rank rank) {
  const bool committing = state_ == RecvState::committing;
  if (committing) loss_ = {why, rank};
  if (std::exchange(taken_back_at_, std::nullopt)) {
    outcome_.lost = {rank};
    outcome_.status = {why.code, why.message + (committing ? "" : aftermath())};
  }
  if (state_ != RecvState::reading && state_ != RecvState::waiting) return;
  outcome_.lost = {rank};
  fail({why.code, why.message + undefined}, RecvEvent::failed);
}

void Recv::end(const Status& why) {
  if (state_ == RecvState::reading) {
    fail({why.code, why.message + undefined}, RecvEvent::ended);
  } else if (state_ == RecvState::waiting) {
    fail(why, RecvEvent::ended);
  }
}

void Recv::give_up(const Status& why) {
  if (state_ != RecvState::committing) return end(why);
  consumed_ = true;
  outcome_.status = {why.code, fmt::format("{}; round {} was being confirmed and is used up",
                                           why.message, round_)};
  state_ = RecvState::done;
}

void Recv::fail(Status why, RecvEvent event) {
  const auto after = next(state_, event);
  if (!after) return;
  state_ = *after;
  if (state_ == RecvState::draining) context_.at(Step::draining);
  outcome_.status = std::move(why);
  if (checked_) settle_checks();
  for (const auto& id : running_) {
    if (id) context_.fabric.cancel(*id);
  }
  if (state_ == RecvState::draining && left_ == 0) {
    state_ = next(state_, RecvEvent::drained).value();
  }
}

// The worker has its memory back soon: no device is at it any more.
void Recv::settle_checks() noexcept {
  for (const RecvPart& part : parts_) {
    if (part.digest != nullptr) part.digest->settle();
  }
  for (const auto& fold : folds_) fold->settle();
}

void Recv::fail_here(const Status& why) {
  fail({why.code, fmt::format("round {}: {}{}", round_, why.message, undefined)},
       RecvEvent::failed);
}

void Recv::commit() {
  state_ = next(state_, RecvEvent::all_read).value();
  outcome_.timing.verify = end_phase();
  context_.at(Step::committing);
  left_ = commits_.size();
  const std::uint64_t offered = pack(RoundWord{Mark::offered, round_});
  const std::uint64_t read = pack(RoundWord{Mark::read, round_});
  for (std::size_t at = 0; at < commits_.size(); ++at) {
    const RecvCommit& commit = commits_[at];
    const auto id =
        context_.operations.add([self = shared_from_this(), at](const fabric::Completion& done) {
          self->on_committed(at, done);
        });
    try {
      context_.fabric.swap({commit.source, commit.word, offered, read}, id, Deadline::never());
    } catch (const Error& error) {
      context_.operations.forget(id);
      on_committed(at, {id, error.status(), 0, nullptr});
    }
  }
  if (commits_.empty()) settle();
}

void Recv::on_committed(std::size_t at, const fabric::Completion& completion) {
  const RecvCommit& commit = commits_[at];
  const std::uint64_t offered = pack(RoundWord{Mark::offered, round_});
  const bool swapped = completion.status.ok() && completion.value == offered;
  if (swapped) {
    // Also after the recv was given up: the source must know that its memory is free.
    context_.connections.send(*commit.connection, generation_, serial_, Look{round_});
  }
  if (state_ != RecvState::committing) return;
  --left_;
  if (swapped) {
    ++committed_;
  } else if (completion.status.code == Code::peer_lost) {
    outcome_.lost.push_back(commit.rank);
    outcome_.status = {Code::peer_lost,
                       fmt::format("round {}: rank {} was lost while it was being told ({})",
                                   round_, commit.rank, completion.status.message)};
  } else if (outcome_.status.ok() && loss_) {
    outcome_.lost = {loss_->second};
    outcome_.status = loss_->first;
  } else if (outcome_.status.ok()) {
    outcome_.status = {
        Code::withdrawn,
        fmt::format("round {}: rank {} withdrew it before all was read", round_, commit.rank)};
    await_explanation();
  }
  if (left_ == 0) settle();
}

void Recv::settle() {
  state_ = next(state_, RecvEvent::settled).value();
  outcome_.timing.commit = end_phase();
  consumed_ = committed_ > 0 || outcome_.status.ok();
  if (!outcome_.status.ok()) outcome_.status.message += aftermath();
}

std::string Recv::aftermath() const {
  if (committed_ == 0) return undefined;
  return fmt::format("; others were confirmed, so round {} is used up{}", round_, undefined);
}

}  // namespace tensorbus::bus
