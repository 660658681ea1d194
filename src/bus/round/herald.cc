#include "bus/round/herald.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

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
    link_ = context_.links.open(*address_, Deadline(context_.now + connect_patience));
    if (link_->up()) ask();
  } catch (const Error& error) {
    log::debug("bus: rank {}: the first sender, rank {}, is not reached: {}", context_.rank, first_,
               error.what());
    link_ = nullptr;
    retry_at_ = context_.now + between_tries;
  }
}

void Herald::ask() {
  if (std::exchange(asked_, true)) return;
  context_.links.send(*link_, generation_, serial_, wish_);
}

void Herald::on_up(const LinkPtr& link) {
  if (link == link_) ask();
}

void Herald::on_lost(const LinkPtr& link) {
  std::erase_if(followers_, [&](const Follower& each) { return each.link == link; });
  if (link_ == nullptr || link != link_) return;
  link_ = nullptr;
  retry_at_ = context_.now + between_tries;
}

void Herald::step() {
  if (retry_at_ <= context_.now) follow();
}

void Herald::add_follower(const LinkPtr& link, std::uint64_t serial) {
  followers_.push_back({link, serial});
  if (begun_ != 0) context_.links.send(*link, generation_, serial, Begun{begun_});
  if (ended_.round != 0) context_.links.send(*link, generation_, serial, ended_);
}

void Herald::tell_all(const MessageBody& body) {
  for (const Follower& each : followers_) {
    context_.links.send(*each.link, generation_, each.serial, body);
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
  if (const auto* begun = std::get_if<Begun>(&message.body)) {
    begun_ = std::max(begun_, begun->round);
  } else if (const auto* ended = std::get_if<Ended>(&message.body)) {
    if (ended->round > ended_.round) ended_ = *ended;
  }
}

bool Herald::has_begun(std::int64_t round) const noexcept {
  return begun_ >= round || ended_.round >= round;
}

std::optional<std::map<Rank, ReaderOutcome>> Herald::ending(std::int64_t round) const {
  if (ended_.round < round) return std::nullopt;
  return ended_.round == round ? ended_.readers : std::map<Rank, ReaderOutcome>();
}

}  // namespace tensorbus::bus
