#include "bus/batch/queries.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace tensorbus::bus {
namespace {

// With a first sender that does not answer: what this rank knows itself has to do.
constexpr Duration patience_with_first = std::chrono::seconds(1);

}  // namespace

void Queries::ask(CommandId id, const QuerySignal& query, Deadline deadline) {
  waiting_.push_back({id, query, deadline});
  answer();
}

void Queries::answer() {
  std::erase_if(asking_, [&](const VersionQuery& each) {
    if (each.deadline.at() > self_.context.now) return false;
    answer_versions(each.id, {});
    return true;
  });
  std::erase_if(waiting_, [&](const Query& each) {
    const bool signal = published(each.query.round);
    const bool late = each.deadline.at() <= self_.context.now;
    if (!signal && each.query.wait && !late) return false;
    Outcome outcome;
    outcome.signal = signal;
    if (!signal && each.query.wait) {
      outcome.status = {Code::timeout,
                        fmt::format("batch \"{}\": no round was published in time: {}",
                                    self_.key.batch, unpublished(each.query.round))};
    }
    self_.complete(each.id, std::move(outcome));
    return true;
  });
}

bool Queries::published(std::optional<std::int64_t> round) const {
  const Reader* reader = receiving_.reader();
  if (reader != nullptr && reader->published(round)) return true;
  if (!sending_.active()) return false;
  const std::int64_t opened = sending_.source()->highest_opened();
  const std::int64_t last = self_.membership.last_round;
  return round ? opened >= *round : last > 0 && opened == last;
}

// A batch goes both ways, and nobody knows which one the asker means: why nothing was published.
std::string Queries::unpublished(std::optional<std::int64_t> round) const {
  const std::int64_t last = self_.membership.last_round;
  std::vector<std::string> reasons;
  if (receiving_.started()) {
    reasons.push_back(fmt::format("rank {} has not offered {}",
                                  fmt::join(receiving_.reader()->awaited(round), ", "),
                                  round ? fmt::format("round {}", *round) : "one"));
  } else if (!self_.one_way(Direction::send)) {
    reasons.emplace_back("this rank has not joined the senders");
  }
  if (!self_.one_way(Direction::recv)) {
    const std::int64_t own = round.value_or(std::max<std::int64_t>(last, 1));
    reasons.push_back(last < own ? fmt::format("this rank itself has not sent round {}", own)
                                 : fmt::format("its own round {} waits for those before it", own));
  }
  return fmt::format("{}", fmt::join(reasons, ", and "));
}

void Queries::ask_stage(CommandId id, const QueryStage& query) {
  Outcome outcome;
  outcome.stage = sending_.stage_types(query.min_readers);
  self_.complete(id, std::move(outcome));
}

void Queries::ask_versions(CommandId id, Deadline deadline) {
  if (!sending_.ask_versions() && !receiving_.ask_versions()) return answer_versions(id, {});
  asking_.push_back({id, sooner(deadline, Deadline(self_.context.now + patience_with_first))});
}

bool Queries::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (std::holds_alternative<AskVersions>(message.body)) {
    if (sending_.knows(connection, message)) {
      self_.context.connections.send(*connection, message.generation, message.serial,
                                     KnownVersions{known_versions()});
    }
    return true;
  }
  const auto* known = std::get_if<KnownVersions>(&message.body);
  if (known == nullptr) return false;
  const Reader* reader = receiving_.reader();
  if (sending_.knows(connection, message) || (reader != nullptr && reader->knows(message.serial))) {
    take_versions(known->versions);
  }
  return true;
}

void Queries::take_versions(const Versions& theirs) {
  for (const VersionQuery& each : std::exchange(asking_, {})) answer_versions(each.id, theirs);
}

Versions Queries::known_versions() const {
  Versions versions = self_.context.catalog.versions(self_.key.batch);
  // What the store has not told this rank back yet.
  if (self_.moved_version) versions[self_.key.side][self_.key.rank] = *self_.moved_version;
  const auto known = sending_.known_versions();
  for (auto& [side, ranks] : versions) {
    for (auto& [rank, version] : ranks) {
      const auto told = known.find(rank);
      if (told != known.end()) version = std::max(version, told->second);
    }
    std::erase_if(ranks, [&, &of = side](const auto& entry) { return is_lost(of, entry.first); });
  }
  std::erase_if(versions, [](const auto& entry) { return entry.second.empty(); });
  return versions;
}

// The ranks are those that this rank knows of; the first sender knows more of their versions.
void Queries::answer_versions(CommandId id, const Versions& theirs) const {
  Outcome outcome;
  outcome.versions = known_versions();
  for (auto& [side, ranks] : outcome.versions) {
    const auto told = theirs.find(side);
    if (told == theirs.end()) continue;
    for (auto& [rank, version] : ranks) {
      const auto found = told->second.find(rank);
      if (found != told->second.end()) version = std::max(version, found->second);
    }
  }
  self_.context.channel.complete(id, outcome);
}

// The rank's death was noticed here, while the store still has its registration.
bool Queries::is_lost(const std::string& side, Rank rank) const {
  const auto now = self_.context.catalog.registration(BatchKey{self_.key.batch, side, rank});
  if (now == nullptr) return true;
  if (sending_.active() && sending_.source()->has_lost(rank, now->registration)) return true;
  const Reader* reader = receiving_.reader();
  const GroupPtr& joined = receiving_.group();
  if (reader == nullptr || joined == nullptr) return false;
  const auto then = joined->members.find(rank);
  return then != joined->members.end() && then->second == now &&
         std::ranges::find(reader->lost(), rank) != reader->lost().end();
}

bool Queries::cancel(CommandId id, const Status& why) {
  const auto is_this = [&](const auto& each) { return each.id == id; };
  if (std::erase_if(waiting_, is_this) + std::erase_if(asking_, is_this) == 0) return false;
  self_.answer(id, why);
  return true;
}

void Queries::close(const Status& why) {
  for (const Query& each : std::exchange(waiting_, {})) self_.answer(each.id, why);
  for (const VersionQuery& each : std::exchange(asking_, {})) self_.answer(each.id, why);
}

TimePoint Queries::wake_at() const {
  TimePoint at = TimePoint::max();
  for (const Query& query : waiting_) at = std::min(at, query.deadline.at());
  for (const VersionQuery& query : asking_) at = std::min(at, query.deadline.at());
  return at;
}

}  // namespace tensorbus::bus
