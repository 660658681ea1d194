#include "bus/agent/pairs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/refuse.h"
#include "bus/channel/names.h"

namespace tensorbus::bus {
namespace {

// Where the state keeps what a client asked for.
std::string state_key(std::uint64_t session, const PairKey& key) {
  return fmt::format("session/{}/{}", session, to_text(key));
}

bool same_side(const InitPair& a, const InitPair& b) {
  return a.remote == b.remote && a.world_size == b.world_size && a.layout == b.layout;
}

}  // namespace

void Pairs::check(const InitPair& pair, const End& end) const {
  check_names(pair);
  if (pair.local == pair.remote) {
    refuse(
        fmt::format("pair \"{}\": local and remote name are both \"{}\"", pair.pair, pair.local));
  }
  const auto found = pairs_.find(end);
  if (found == pairs_.end() || !found->second.lasts || same_side(found->second.pair, pair)) return;
  for (const auto& [rank, member] : context_.catalog.members(end)) {
    if (rank == context_.rank || !member->failed.empty()) continue;
    refuse(fmt::format("{} is in use by rank {} with another layout, size or remote name",
                       to_string(end), rank));
  }
}

void Pairs::init(const Submission& submission, const InitPair& pair) {
  const End end{pair.pair, pair.local};
  check(pair, end);
  // First of all: what cannot be kept is refused.
  const std::uint64_t session = submission.id.session;
  state_.keep(state_key(session, {end, context_.rank}), encode(submission.command));
  Here& here = pairs_[end];
  const std::uint64_t before = here.session != 0 ? sessions_.incarnation(here.session) : 0;
  const bool again =
      here.lasts && same_side(here.pair, pair) && before == sessions_.incarnation(session);
  here.pair = pair;
  here.sessions.insert(session);
  here.waiting.emplace_back(submission.id, submission.deadline);
  context_.at(Step::pairing);
  here.established = false;
  if (!again) {
    here.session = session;
    here.attempt = context_.random();
    here.lasts = false;
    here.known.merge(failures(context_.catalog, pair));
    publish(here, "");
  }
  changed_ = true;
}

bool Pairs::cancel(CommandId id, const Status& reason) {
  for (auto& [end, here] : pairs_) {
    if (std::erase_if(here.waiting, [&](const auto& each) { return each.first == id; }) == 0) {
      continue;
    }
    context_.answer(id, reason);
    const End ended = end;
    if (!here.lasts && here.waiting.empty()) drop(ended, here.session, Asking::forgotten);
    return true;
  }
  return false;
}

void Pairs::restore(std::uint64_t session) {
  for (const auto& [key, value] : state_.scan(fmt::format("session/{}/", session))) {
    try {
      const Command command = decode_command(value);
      const auto& pair = std::get<InitPair>(command);
      Here& here = pairs_[{pair.pair, pair.local}];
      here.sessions.insert(session);
      if (here.session == session) continue;
      here.pair = pair;
      here.session = session;
      here.attempt = context_.random();
      here.established = true;
      here.lasts = true;
      publish(here, "");
    } catch (const std::exception& error) {
      log::warn("bus: rank {}: the state {} is ignored: {}", context_.rank, key, error.what());
    }
  }
}

void Pairs::end_session(std::uint64_t session, const Status& why, Asking asking) {
  std::vector<End> ends;
  for (auto& [end, here] : pairs_) {
    std::erase_if(here.waiting, [&](const auto& each) {
      if (each.first.session != session) return false;
      context_.answer(each.first, why);
      return true;
    });
    ends.push_back(end);
  }
  for (const End& end : ends) drop(end, session, asking);
}

void Pairs::refused(const End& end, const Status& why) {
  if (pairs_.contains(end)) fail(end, why, false);
}

void Pairs::publish_all() const {
  for (const auto& [end, here] : pairs_) {
    if (here.attempt != 0) publish(here, "");
  }
}

void Pairs::publish(const Here& here, const std::string& failed) const {
  PairMember member;
  member.incarnation = sessions_.incarnation(here.session);
  member.attempt = here.attempt;
  member.failed = failed;
  member.address = context_.fabric.address();
  member.world_size = here.pair.world_size;
  member.remote = here.pair.remote;
  member.layout = here.pair.layout;
  context_.directory.publish(to_text(PairKey{{here.pair.pair, here.pair.local}, context_.rank}),
                             encode(member));
}

void Pairs::withdraw(const End& end) const {
  context_.directory.withdraw(to_text(PairKey{end, context_.rank}));
}

End Pairs::local_end(const std::string& pair, const std::optional<std::string>& role) const {
  std::vector<End> here;
  for (auto each = pairs_.lower_bound({pair, ""}); each != pairs_.end() && each->first.pair == pair;
       ++each) {
    here.push_back(each->first);
  }
  if (here.empty()) refuse(fmt::format("pair \"{}\" is not known; call init_pair first", pair));
  if (here.size() == 1) return here.front();
  for (const End& end : here) {
    if (role && end.side == *role) return end;
  }
  refuse(fmt::format("rank {} has \"{}\" and \"{}\" of pair \"{}\"; role must say which is meant",
                     context_.rank, here[0].side, here[1].side, pair));
}

std::optional<std::string> Pairs::remote_of(const End& end) const {
  const Here& here = pairs_.at(end);
  if (here.established) return here.pair.remote;
  if (here.waiting.empty() && !here.lasts) {
    refuse(fmt::format("pair \"{}\" is not complete; call init_pair first", end.pair));
  }
  return std::nullopt;
}

bool Pairs::step() {
  if (!std::exchange(changed_, false)) return false;
  std::vector<End> ends;
  for (const auto& [end, here] : pairs_) ends.push_back(end);
  for (const End& end : ends) assess(end);
  return true;
}

void Pairs::assess(const End& end) {
  Here& here = pairs_.at(end);
  if (here.established || here.attempt == 0) return;
  // What the store shows of this rank is what the others see.
  const auto shown = context_.catalog.member({end, context_.rank});
  if (shown == nullptr || shown->attempt != here.attempt) return;
  const Verdict verdict = bus::assess(context_.catalog, here.pair, here.known, Search::in_short);
  if (!verdict.failed.ok()) {
    if (!here.waiting.empty()) fail(end, verdict.failed, !verdict.elsewhere);
    return;
  }
  if (!verdict.ready) return;
  here.established = true;
  here.lasts = true;
  for (const auto& [id, deadline] : std::exchange(here.waiting, {})) context_.answer(id);
}

void Pairs::fail(const End& end, const Status& why, bool tell) {
  Here& here = pairs_.at(end);
  if (tell) {
    publish(here, why.message);
  } else {
    withdraw(end);
  }
  for (const auto& [id, deadline] : std::exchange(here.waiting, {})) context_.answer(id, why);
  // Every rank that was there had the same verdict.
  for (const std::string& side : {here.pair.local, here.pair.remote}) {
    for (const auto& [rank, member] : context_.catalog.members({end.pair, side})) {
      here.known.insert({rank, member->attempt});
    }
  }
  here.lasts = false;
  here.attempt = 0;
}

Awaited Pairs::awaited(const End& end) const {
  const auto found = pairs_.find(end);
  if (found == pairs_.end() || found->second.waiting.empty()) return {};
  return {bus::assess(context_.catalog, found->second.pair, found->second.known).missing, {}};
}

void Pairs::expire() {
  for (auto& [end, here] : pairs_) expire(here);
}

void Pairs::expire(Here& here) {
  bool ended = false;
  std::erase_if(here.waiting, [&](const auto& each) {
    if (each.second.at() > context_.now) return false;
    std::string missing = bus::assess(context_.catalog, here.pair, here.known).missing;
    if (const Status& away = context_.store_is_away; !away.ok()) {
      missing += "; the store cannot be reached: " + away.message;
    }
    context_.answer(each.first, {Code::timeout, fmt::format("pair \"{}\" is not complete: {}",
                                                            here.pair.pair, missing)});
    ended = true;
    return true;
  });
  if (ended && !here.lasts && here.waiting.empty()) {
    withdraw({here.pair.pair, here.pair.local});
    here.attempt = 0;
  }
}

void Pairs::drop(const End& end, std::uint64_t session, Asking asking) {
  const auto found = pairs_.find(end);
  if (found == pairs_.end() || found->second.sessions.erase(session) == 0) return;
  if (asking == Asking::forgotten) state_.forget(state_key(session, {end, context_.rank}));
  if (!found->second.sessions.empty()) return;
  withdraw(end);
  pairs_.erase(found);
}

TimePoint Pairs::wake_at() const {
  TimePoint at = TimePoint::max();
  for (const auto& [end, here] : pairs_) {
    for (const auto& [id, deadline] : here.waiting) at = std::min(at, deadline.at());
  }
  return at;
}

}  // namespace tensorbus::bus
