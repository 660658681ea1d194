#include "bus/round/herald.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tensorbus::bus {
namespace {

constexpr Duration between_tries = std::chrono::milliseconds(200);

}  // namespace

Herald::Herald(Context& context, Follow wish, std::int64_t generation, Rank first,
               std::optional<fabric::Address> address, std::set<Rank> senders)
    : context_(context),
      wish_(std::move(wish)),
      generation_(generation),
      first_(first),
      address_(std::move(address)),
      senders_(std::move(senders)) {
  if (!is_first()) follow();
}

void Herald::follow() {
  retry_at_ = TimePoint::max();
  asked_ = false;
  answered_ = false;
  serial_ = context_.random();
  try {
    connection_ = context_.connections.open(*address_, Deadline(context_.now + connect_patience));
    if (connection_->up()) ask();
  } catch (const Error& error) {
    log::debug("bus: rank {}: the first sender, rank {}, is not reached: {}", context_.rank, first_,
               error.what());
    connection_ = nullptr;
    retry_at_ = context_.now + between_tries;
  }
}

void Herald::ask() {
  if (std::exchange(asked_, true)) return;
  context_.connections.send(*connection_, generation_, serial_, wish_);
  tell_completed();
}

void Herald::on_up(const PeerConnectionPtr& connection) {
  if (connection == connection_) ask();
}

void Herald::on_lost(const PeerConnectionPtr& connection) {
  std::erase_if(followers_, [&](const Follower& each) { return each.connection == connection; });
  if (connection_ == nullptr || connection != connection_) return;
  connection_ = nullptr;
  retry_at_ = context_.now + between_tries;
}

void Herald::step() {
  if (retry_at_ <= context_.now) follow();
}

void Herald::add_follower(const PeerConnectionPtr& connection, std::uint64_t serial,
                          const Follow& wish) {
  followers_.push_back({connection, serial, wish.rank, wish.version});
  if (begun_ != 0) context_.connections.send(*connection, generation_, serial, Begun{begun_});
  if (ended_.round != 0) context_.connections.send(*connection, generation_, serial, ended_);
  // In any case: what the follower told before it was one was dropped, and is told again then.
  context_.connections.send(*connection, generation_, serial, common_);
}

void Herald::tell_all(const MessageBody& body) {
  for (const Follower& each : followers_) {
    context_.connections.send(*each.connection, generation_, each.serial, body);
  }
}

void Herald::tell_begun(std::int64_t round) {
  if (round <= begun_) return;
  begun_ = round;
  tell_all(Begun{round});
}

void Herald::tell_ended(std::int64_t round, std::map<Rank, ReaderOutcome> readers) {
  if (round <= ended_.round) return;
  ended_ = {round, std::move(readers)};
  tell_all(ended_);
}

bool Herald::knows(const PeerConnectionPtr& connection, std::uint64_t serial) const noexcept {
  if (connection_ != nullptr && serial == serial_) return true;
  return std::ranges::any_of(followers_, [&](const Follower& each) {
    return each.connection == connection && each.serial == serial;
  });
}

void Herald::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (message.generation != generation_) return;
  std::visit(Overloaded{
                 [&](const Begun& begun) { begun_ = std::max(begun_, begun.round); },
                 [&](const Ended& ended) {
                   if (ended.round > ended_.round) ended_ = ended;
                 },
                 [&](const Completed& completed) { on_completed(connection, message, completed); },
                 [&](const Common& common) {
                   if (common.version >= common_.version) common_ = common;
                   if (!std::exchange(answered_, true)) tell_completed();
                 },
                 [&](const Sent& sent) {
                   for (Follower& each : followers_) {
                     if (each.connection == connection && each.serial == message.serial) {
                       each.sent = sent.version;
                     }
                   }
                 },
                 [](const OneOf<Follow, KnownVersions> auto&) {},  // the batch sees to them
                 // These messages do not pass between senders.
                 [](const ToSource auto&) {},
                 [](const ToReader auto&) {},
                 [](const ToPuller auto&) {},
                 [](const AmongPullers auto&) {},
                 [](const OneOf<Subscribe, Leave, Hold, AskPatch, AskSums> auto&) {},
             },
             message.body);
}

void Herald::note_sent(std::int64_t version) {
  wish_.version = version;
  if (connection_ == nullptr || !asked_) return;
  context_.connections.send(*connection_, generation_, serial_, Sent{version});
}

std::map<Rank, std::int64_t> Herald::sent_versions() const {
  std::map<Rank, std::int64_t> versions;
  for (const Follower& each : followers_) versions[each.rank] = each.sent;
  return versions;
}

bool Herald::ask_versions() {
  if (connection_ == nullptr || !asked_) return false;
  context_.connections.send(*connection_, generation_, serial_, AskVersions{});
  return true;
}

void Herald::note_complete(std::vector<std::int64_t> versions) {
  if (is_first()) return take_completed(first_, versions);
  completed_ = std::move(versions);
  tell_completed();
}

void Herald::tell_completed() {
  if (connection_ == nullptr || !asked_ || completed_.empty()) return;
  context_.connections.send(*connection_, generation_, serial_, Completed{completed_});
}

void Herald::on_completed(const PeerConnectionPtr& connection, const AgentMessage& message,
                          const Completed& completed) {
  const auto follower = std::ranges::find_if(followers_, [&](const Follower& each) {
    return each.connection == connection && each.serial == message.serial;
  });
  if (follower == followers_.end()) return;
  take_completed(follower->rank, completed.versions);
  const auto newest = std::ranges::max_element(completed.versions);
  if (newest == completed.versions.end()) return;
  context_.connections.send(*connection, generation_, message.serial,
                            Common{common_.version, lacking(*newest), common_.doomed});
}

void Herald::take_completed(Rank rank, const std::vector<std::int64_t>& versions) {
  shelves_[rank] = {versions.begin(), versions.end()};
  Common now{common_.version, {}, {}};
  for (const auto& [each, kept] : shelves_) {
    for (const std::int64_t version : kept) {
      if (lacking(version).empty()) now.version = std::max(now.version, version);
    }
  }
  for (const auto& [each, kept] : shelves_) {
    for (const std::int64_t version : kept) {
      if (version > now.version && is_doomed(version)) now.doomed.push_back(version);
    }
  }
  std::ranges::sort(now.doomed);
  now.doomed.erase(std::unique(now.doomed.begin(), now.doomed.end()), now.doomed.end());
  now.doomed.resize(std::min(now.doomed.size(), most_slots));
  if (now == common_) return;
  common_ = now;
  tell_all(common_);
}

// Versions only grow: whoever has a later one without this one will never have this one.
bool Herald::is_doomed(std::int64_t version) const {
  return std::ranges::any_of(shelves_, [&](const auto& each) {
    const std::set<std::int64_t>& kept = each.second;
    return !kept.empty() && *kept.rbegin() > version && !kept.contains(version);
  });
}

std::vector<Rank> Herald::lacking(std::int64_t version) const {
  if (!is_first()) return common_.lacking;
  std::vector<Rank> ranks;
  for (const Rank rank : senders_) {
    const auto found = shelves_.find(rank);
    if (found == shelves_.end() || !found->second.contains(version)) ranks.push_back(rank);
  }
  ranks.resize(std::min(ranks.size(), most_named));
  return ranks;
}

bool Herald::has_begun(std::int64_t round) const noexcept {
  return begun_ >= round || ended_.round >= round;
}

std::optional<std::map<Rank, ReaderOutcome>> Herald::ending(std::int64_t round) const {
  if (ended_.round < round) return std::nullopt;
  return ended_.round == round ? ended_.readers : std::map<Rank, ReaderOutcome>();
}

}  // namespace tensorbus::bus
