#include "bus/round/herald.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/overloaded.h"

namespace tensorbus::bus {
namespace {

constexpr Duration between_tries = std::chrono::milliseconds(200);

}  // namespace

Herald::Herald(Context& context, Follow wish, std::int64_t generation, Rank first,
               std::optional<fabric::Address> address)
    : context_(context),
      wish_(std::move(wish)),
      generation_(generation),
      first_(first),
      address_(std::move(address)) {
  if (!is_first()) follow();
}

void Herald::follow() {
  retry_at_ = TimePoint::max();
  asked_ = false;
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

void Herald::add_follower(const PeerConnectionPtr& connection, std::uint64_t serial) {
  followers_.push_back({connection, serial});
  if (begun_ != 0) context_.connections.send(*connection, generation_, serial, Begun{begun_});
  if (ended_.round != 0) context_.connections.send(*connection, generation_, serial, ended_);
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

void Herald::on_message(const AgentMessage& message) {
  if (message.generation != generation_) return;
  std::visit(Overloaded{
                 [&](const Begun& begun) { begun_ = std::max(begun_, begun.round); },
                 [&](const Ended& ended) {
                   if (ended.round > ended_.round) ended_ = ended;
                 },
                 [](const Follow&) {},  // the batch answers it
                 // Nothing that passes between senders.
                 [](const OneOf<Subscribe, Join, Start, Leave, Look, Moved> auto&) {},
                 [](const OneOf<Subscribed, Joined, Offer, Sums, Over> auto&) {},
             },
             message.body);
}

bool Herald::has_begun(std::int64_t round) const noexcept {
  return begun_ >= round || ended_.round >= round;
}

std::optional<std::map<Rank, ReaderOutcome>> Herald::ending(std::int64_t round) const {
  if (ended_.round < round) return std::nullopt;
  return ended_.round == round ? ended_.readers : std::map<Rank, ReaderOutcome>();
}

}  // namespace tensorbus::bus
