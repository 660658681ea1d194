#include "bus/round/source.h"

#include <algorithm>

namespace tensorbus::bus {
namespace {

constexpr Duration patience_with_joiners = std::chrono::seconds(1);

}  // namespace

RoundWord Source::word_of(const Subscription& subscription) {
  return unpack(subscription.word.value->load(std::memory_order_acquire));
}

RoundWord Source::settle(Subscription& subscription, Mark mark) {
  std::uint64_t seen = subscription.word.value->load(std::memory_order_acquire);
  while (!unpack(seen).over()) {
    const std::uint64_t desired = pack(RoundWord{mark, unpack(seen).round});
    if (subscription.word.value->compare_exchange_strong(seen, desired,
                                                         std::memory_order_acq_rel)) {
      return unpack(desired);
    }
  }
  return unpack(seen);
}

void Source::subscribe(const PeerConnectionPtr& connection, std::uint64_t serial, Subscriber reader,
                       Memory memory) {
  if (subscriptions_.contains(serial)) return;
  for (auto each = subscriptions_.begin(); each != subscriptions_.end();) {
    const auto& [old, subscription] = *each++;
    if (subscription.reader == reader.rank) end_subscription(old, "the reader joins anew", false);
  }
  try {
    Subscription subscription;
    subscription.connection = connection;
    subscription.reader = reader.rank;
    subscription.registration = reader.registration;
    subscription.bytes = reader.bytes;
    subscription.readable = memory.readable;
    subscription.digests = std::move(memory.digests);
    subscription.word = context_.fabric.make_word(*connection->peer(), pack(RoundWord{}));
    const Subscribed answer{{}, memory.region, subscription.word.number};
    subscriptions_.emplace(serial, std::move(subscription));
    lost_.erase(reader.rank);
    context_.at(Step::subscribed);
    context_.connections.send(*connection, generation_, serial, answer);
  } catch (const Error& error) {
    context_.connections.send(*connection, generation_, serial, Subscribed{error.status(), 0, 0});
  }
}

void Source::forget_digests() {
  for (auto& [serial, subscription] : subscriptions_) subscription.digests.clear();
}

void Source::restage(std::uint64_t serial, Memory memory) {
  Subscription& subscription = subscriptions_.at(serial);
  subscription.readable = memory.readable;
  subscription.digests = std::move(memory.digests);
  context_.connections.send(*subscription.connection, generation_, serial, Restaged{memory.region});
  if (subscription.wants_to_join) on_join(subscription, serial);
}

bool Source::is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  if (message.generation != generation_) return false;
  const auto found = subscriptions_.find(message.serial);
  return found != subscriptions_.end() && found->second.connection == connection;
}

void Source::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  const auto found = subscriptions_.find(message.serial);
  if (found == subscriptions_.end() || found->second.connection != connection) return;
  Subscription& subscription = found->second;
  std::visit(Overloaded{
                 [&](const Join&) { on_join(subscription, message.serial); },
                 [&](const Start& start) { on_start(subscription, message.serial, start); },
                 [&](const Moved& moved) {
                   if (!subscription.in_round || open_->round != moved.round) return;
                   subscription.moved = std::min(moved.bytes, subscription.bytes);
                 },
                 [&](const Leave&) { end_subscription(message.serial, "the reader left", false); },
                 [](const Look&) {},         // whoever asks finished() looks
                 [](const AskVersions&) {},  // the batch answers it
                 [](const Subscribe&) {},    // so it does this
                 // These messages are not for a source.
                 [](const ToReader auto&) {},
                 [](const ToPuller auto&) {},
                 [](const AmongSenders auto&) {},
                 [](const AmongPullers auto&) {},
                 [](const OneOf<Hold, AskPatch, AskSums> auto&) {},
             },
             message.body);
}

void Source::on_join(Subscription& subscription, std::uint64_t serial) {
  if (subscription.joined) return;
  subscription.wants_to_join = !subscription.readable;
  if (subscription.wants_to_join) return;
  subscription.joined = true;
  context_.at(Step::holding);
  subscription.start = highest_opened_ + 1;
  subscription.counts_since = context_.now;
  context_.connections.send(*subscription.connection, generation_, serial,
                            Joined{subscription.start});
}

void Source::on_start(Subscription& subscription, std::uint64_t serial, const Start& start) {
  if (!subscription.joined || subscription.started) return;
  if (subscription.in_round && open_->round < start.round) {
    if (settle(subscription, Mark::revoked).mark == Mark::revoked) {
      say_over(subscription, serial, "the reader starts later");
    }
    note_ending(subscription, false);
  }
  subscription.started = true;
  started_.insert(subscription.reader);
  context_.at(Step::releasing);
  subscription.start = std::max(subscription.start, start.round);
}

void Source::on_lost(const PeerConnection& connection) {
  for (auto each = subscriptions_.begin(); each != subscriptions_.end();) {
    const auto& [serial, subscription] = *each++;
    if (subscription.connection.get() != &connection) continue;
    lost_[subscription.reader] = subscription.registration;
    end_subscription(serial, "the connection is lost", false);
  }
}

bool Source::has_started(Rank reader) const { return started_.contains(reader); }

bool Source::has_lost(Rank reader, std::uint64_t registration) const {
  const auto found = lost_.find(reader);
  return found != lost_.end() && found->second == registration;
}

std::size_t Source::ready_for(std::int64_t round) const {
  return static_cast<std::size_t>(std::ranges::count_if(subscriptions_, [&](const auto& entry) {
    return entry.second.started && entry.second.start <= round;
  }));
}

std::shared_ptr<Digest> Source::find_digest(const plan::Stream& stream, Verify verify) const {
  for (const auto& [serial, subscription] : subscriptions_) {
    for (const auto& digest : subscription.digests) {
      if (digest->serves(stream, verify)) return digest;
    }
  }
  return nullptr;
}

bool Source::prepare(std::int64_t round) {
  std::int64_t budget = Digest::at_once;
  for (auto& [serial, subscription] : subscriptions_) {
    if (!subscription.joined || subscription.start > round) continue;
    for (const auto& digest : subscription.digests) {
      if (!is_checked(subscription, *digest)) continue;
      if (digest->round() != round) digest->begin(round);
      if (!digest->work(budget)) return false;
    }
  }
  return true;
}

void Source::send_sums(const Subscription& subscription, std::uint64_t serial) {
  std::vector<std::uint64_t> all;
  for (const auto& digest : subscription.digests) {
    if (!is_checked(subscription, *digest)) continue;
    all.insert(all.end(), digest->sums().begin(), digest->sums().end());
  }
  for (std::size_t first = 0; first < all.size(); first += most_sums) {
    const std::size_t end = std::min(all.size(), first + most_sums);
    context_.connections.send(*subscription.connection, generation_, serial,
                              Sums{open_->round,
                                   first,
                                   {all.begin() + static_cast<std::ptrdiff_t>(first),
                                    all.begin() + static_cast<std::ptrdiff_t>(end)}});
  }
}

void Source::open(std::int64_t round, std::uint64_t ticket, std::int64_t version) {
  open_ = Open{round, version, {}};
  bytes_read_ = 0;
  context_.at(Step::offered);
  highest_opened_ = round;
  for (auto& [serial, subscription] : subscriptions_) {
    if (!subscription.joined || subscription.start > round) continue;
    subscription.in_round = true;
    subscription.moved = 0;
    subscription.counts_since = context_.now;
    send_sums(subscription, serial);
    subscription.word.value->store(pack(RoundWord{Mark::offered, round}),
                                   std::memory_order_release);
    context_.connections.send(*subscription.connection, generation_, serial,
                              Offer{round, ticket, version});
  }
}

std::optional<std::map<Rank, Ending>> Source::finished() {
  if (!open_) return std::nullopt;
  bool all = true;
  for (auto& [serial, subscription] : subscriptions_) {
    if (!subscription.in_round) continue;
    if (!subscription.started &&
        context_.now - subscription.counts_since >= patience_with_joiners) {
      if (settle(subscription, Mark::revoked).mark == Mark::revoked) {
        say_over(subscription, serial, "the reader has not started");
      }
    }
    if (word_of(subscription).over()) {
      note_ending(subscription, false);
    } else {
      all = false;
    }
  }
  if (!all) return std::nullopt;
  context_.at(Step::sent);
  std::map<Rank, Ending> endings = std::move(open_->endings);
  open_.reset();
  return endings;
}

std::int64_t Source::bytes_done() const noexcept {
  std::int64_t bytes = bytes_read_;
  for (const auto& [serial, subscription] : subscriptions_) {
    if (subscription.in_round) bytes += subscription.moved;
  }
  return bytes;
}

std::int64_t Source::bytes_total() const noexcept {
  std::int64_t bytes = bytes_read_;
  for (const auto& [serial, subscription] : subscriptions_) {
    if (subscription.in_round) bytes += subscription.bytes;
  }
  return bytes;
}

std::set<Rank> Source::unread() const {
  std::set<Rank> ranks;
  for (const auto& [serial, subscription] : subscriptions_) {
    if (subscription.in_round && subscription.started && !word_of(subscription).over()) {
      ranks.insert(subscription.reader);
    }
  }
  return ranks;
}

std::map<Rank, std::int64_t> Source::read_now() const {
  std::map<Rank, std::int64_t> read;
  if (!open_) return read;
  for (const auto& [rank, ending] : open_->endings) {
    if (ending.word.mark == Mark::read) read[rank] = open_->version;
  }
  for (const auto& [serial, subscription] : subscriptions_) {
    if (!subscription.in_round || word_of(subscription).mark != Mark::read) continue;
    read[subscription.reader] = open_->version;
  }
  return read;
}

void Source::revoke(const std::string& why) {
  for (auto& [serial, subscription] : subscriptions_) {
    if (!subscription.in_round || word_of(subscription).over()) continue;
    if (settle(subscription, Mark::revoked).mark == Mark::revoked) {
      context_.at(Step::revoked);
      say_over(subscription, serial, why);
    }
  }
}

bool Source::conflict(Rank reader) {
  for (auto& [serial, subscription] : subscriptions_) {
    if (subscription.reader != reader || !subscription.in_round) continue;
    if (word_of(subscription).over()) continue;
    if (settle(subscription, Mark::conflict).mark != Mark::conflict) continue;
    context_.at(Step::conflicting);
    say_over(subscription, serial, "both are sending");
    return true;
  }
  return false;
}

std::optional<Rank> Source::in_conflict() const {
  for (const auto& [serial, subscription] : subscriptions_) {
    if (subscription.in_round && word_of(subscription).mark == Mark::conflict) {
      return subscription.reader;
    }
  }
  return std::nullopt;
}

void Source::end(const std::string& why) {
  while (!subscriptions_.empty()) end_subscription(subscriptions_.begin()->first, why, true);
}

TimePoint Source::wake_at() const noexcept {
  TimePoint earliest = TimePoint::max();
  for (const auto& [serial, subscription] : subscriptions_) {
    if (subscription.in_round && !subscription.started) {
      earliest = std::min(earliest, subscription.counts_since + patience_with_joiners);
    }
  }
  return earliest;
}

void Source::note_ending(Subscription& subscription, bool lost) {
  if (!std::exchange(subscription.in_round, false)) return;
  Ending ending{word_of(subscription), lost, !subscription.started};
  if (ending.word.mark == Mark::read) {
    bytes_read_ += subscription.bytes;
    subscription.has_read = true;
  }
  const auto [at, fresh] = open_->endings.emplace(subscription.reader, ending);
  // A rank that reads under two names has read when both have.
  if (!fresh && at->second.word.mark == Mark::read) at->second = ending;
}

void Source::end_subscription(std::uint64_t serial, const std::string& why, bool tell) {
  Subscription& subscription = subscriptions_.at(serial);
  const RoundWord at = settle(subscription, tell ? Mark::revoked : Mark::closed);
  note_ending(subscription, !tell);
  // The last word: a reader that still maps the memory of the word can do nothing more.
  subscription.word.value->store(pack(RoundWord{Mark::closed, at.round}),
                                 std::memory_order_release);
  if (tell) say_over(subscription, serial, why);
  subscriptions_.erase(serial);
}

void Source::say_over(const Subscription& subscription, std::uint64_t serial,
                      const std::string& why) {
  const RoundWord word = word_of(subscription);
  context_.connections.send(*subscription.connection, generation_, serial,
                            Over{word.round, word.mark, why});
}

}  // namespace tensorbus::bus
