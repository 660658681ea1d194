#include "bus/shelf/shelves.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tensorbus::bus {
namespace {

// The batch and the senders that SUBSCRIBE or FOLLOW is about.
std::pair<std::string, End> about(const MessageBody& body) {
  if (const auto* wish = std::get_if<Subscribe>(&body)) return {wish->batch, wish->group};
  const auto& wish = std::get<Follow>(body);
  return {wish.batch, wish.group};
}

}  // namespace

std::shared_ptr<Shelf> Shelves::open(Shelf::Origin origin) {
  shelves_.push_back(std::make_shared<Shelf>(context_, std::move(origin)));
  return shelves_.back();
}

void Shelves::note_begun(const BatchKey& key, std::int64_t version) {
  std::int64_t& last = begun_[key];
  last = std::max(last, version);
}

std::int64_t Shelves::last_begun(const BatchKey& key) const {
  const auto found = begun_.find(key);
  return found == begun_.end() ? 0 : found->second;
}

Taken Shelves::take(const PeerConnectionPtr& connection, const AgentMessage& message) {
  const auto [batch, group] = about(message.body);
  bool is_over = false;
  for (const auto& shelf : shelves_) {
    if (shelf->key().batch != batch || shelf->senders()->name != group) continue;
    is_over = is_over || message.generation < shelf->generation();
    if (message.generation != shelf->generation()) continue;
    return std::visit(Overloaded{
                          [&](const Subscribe&) { return shelf->subscribe(connection, message); },
                          [&](const Follow&) {
                            shelf->follow(connection, message);
                            return Taken::done;
                          },
                          [](const OfSubscription auto&) { return Taken::no; },
                      },
                      message.body);
  }
  if (!is_over) return Taken::no;
  context_.connections.send(*connection, message.generation, message.serial,
                            Shelved{{Code::withdrawn, "that generation is over"}, {}, 0});
  return Taken::done;
}

void Shelves::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  Shelf* shelf =
      routes_.find(connection, message, shelves_, [](const auto& each) -> Shelf& { return *each; });
  if (shelf != nullptr) shelf->on_message(connection, message);
}

void Shelves::on_up(const PeerConnectionPtr& connection) {
  for (const auto& shelf : shelves_) shelf->on_up(connection);
}

void Shelves::on_lost(const PeerConnectionPtr& connection) {
  routes_.forget(*connection);
  for (const auto& shelf : shelves_) shelf->on_lost(connection);
}

void Shelves::step() {
  for (const auto& shelf : shelves_) shelf->step();
  // Before a shelf is taken out: each shelf is compared with all.
  std::vector<std::shared_ptr<Shelf>> over;
  std::ranges::copy_if(shelves_, std::back_inserter(over),
                       [&](const auto& shelf) { return is_superseded(*shelf); });
  for (const auto& shelf : over) end(shelf, "there is a newer shelf");
  for (const auto& shelf : std::vector(shelves_)) {
    if (context_.now < kept_until(*shelf)) continue;
    if (shelf->served()) context_.directory.withdraw(to_text(ShelfKey{shelf->key()}));
    end(shelf, "its worker has gone, and it was not to be kept any longer");
  }
  // All shelves of a key have one record: a shelf that is superseded must not write its own over
  // that of the newer shelf, however late the other senders say that they had its version.
  for (const auto& shelf : shelves_) shelf->show();
}

void Shelves::end(const std::shared_ptr<Shelf>& shelf, const std::string& why) {
  shelf->end(why);
  routes_.forget(*shelf);
  std::erase(shelves_, shelf);
}

TimePoint Shelves::kept_until(const Shelf& shelf) const {
  const bool always = !shelf.released() || retain_ == Duration::max();
  return always ? TimePoint::max() : shelf.released_at() + retain_;
}

// A shelf that never had a version for readers is of no use without its worker.
bool Shelves::is_superseded(const Shelf& shelf) const {
  if (!shelf.released()) return false;
  if (!shelf.served() && shelf.slots().newest() == 0) return true;
  return std::ranges::any_of(shelves_, [&](const auto& other) {
    return other->key() == shelf.key() && other->generation() > shelf.generation() &&
           other->served();
  });
}

TimePoint Shelves::wake_at() const {
  TimePoint at = TimePoint::max();
  for (const auto& shelf : shelves_) {
    at = std::min({at, shelf->wake_at(), kept_until(*shelf)});
  }
  return at;
}

void Shelves::show_again() {
  for (const auto& shelf : shelves_) shelf->forget_shown();
}

void Shelves::close() {
  for (const auto& shelf : std::exchange(shelves_, {})) {
    routes_.forget(*shelf);
    shelf->end("the agent stops");
    if (shelf->served()) context_.directory.withdraw(to_text(ShelfKey{shelf->key()}));
  }
}

}  // namespace tensorbus::bus
