#include "bus/shelf/shelf.h"

#include <algorithm>
#include <utility>

namespace tensorbus::bus {
namespace {

std::optional<fabric::Address> address_of_first(const Context& context,
                                                const Shelf::Origin& origin) {
  const Rank first = first_source(*origin.senders);
  if (first == origin.key.rank) return std::nullopt;
  const auto place = context.catalog.member({origin.senders->sides.begin()->first, first});
  return place == nullptr ? fabric::Address() : place->address;
}

std::set<Rank> ranks_of(const Group& group) {
  std::set<Rank> ranks;
  for (const auto& [rank, member] : group.members) ranks.insert(rank);
  return ranks;
}

}  // namespace

Shelf::Shelf(Context& context, Origin origin)
    : context_(context),
      key_(origin.key),
      senders_(origin.senders),
      record_(origin.record),
      loan_(origin.loan),
      slots_(static_cast<std::size_t>(record_.member.versioned->keep.value())),
      patches_(context, patch_origin()),
      herald_(context, Follow{key_.batch, senders_->name, key_.rank}, record_.generation,
              first_source(*senders_), address_of_first(context, origin), ranks_of(*senders_)),
      readers_(key_.rank) {
  for (std::size_t slot = 0; slot < slots_.all().size(); ++slot) {
    regions_.push_back(context_.fabric.expose(tensors_of(slot)));
  }
}

std::vector<TensorView> Shelf::tensors_of(std::size_t slot) const {
  const std::size_t count = record_.member.tensors.size();
  const auto tensors = std::span(loan_->tensors()).subspan(slot * count, count);
  return ordered(source_order(*senders_, record_.member), tensors);
}

// After the slots lies what a version changes.
PatchMaker::Origin Shelf::patch_origin() const {
  PatchMaker::Origin origin{generation(), tensors_of(0), {}};
  if (record_.member.versioned->delta) origin.words = tensors_of(slots_.all().size());
  return origin;
}

std::optional<std::size_t> Shelf::slot_of(std::int64_t version) const {
  const auto& all = slots_.all();
  const auto found = std::ranges::find_if(all, [&](const Slot& slot) {
    return slot.state == SlotState::complete && slot.version == version;
  });
  if (version == 0 || found == all.end()) return std::nullopt;
  return static_cast<std::size_t>(found - all.begin());
}

std::optional<std::size_t> Shelf::compares_with() const {
  return slot_of(patches_.compares_with());
}

std::optional<std::size_t> Shelf::take(std::int64_t version, bool withdraw) {
  const auto slot = slots_.choose(withdraw);
  if (!slot) return std::nullopt;
  if (!slots_.choose(false)) context_.count(&observe::Recorder::slots_withdrawn);
  regions_[*slot]->gate().move_to(slots_.take(*slot, version));
  context_.at(Step::slot_taken);
  return slot;
}

bool Shelf::complete(std::int64_t version, bool compared) {
  const auto slot = slots_.complete(version);
  if (!slot) return false;
  patches_.publish(version, compared);
  context_.at(Step::published);
  tell_all(Published{*slot, version, slots_.all()[*slot].ticket, slots_.common()});
  herald_.note_complete(slots_.versions());
  look_at_common();
  return true;
}

void Shelf::finish() {
  finished_ = true;
  tell_all(Finished{slots_.newest()});
}

void Shelf::release() {
  slots_.give_up();
  released_at_ = context_.now;
}

void Shelf::end(const std::string& why) {
  tell_all(Over{0, Mark::closed, why});
  for (const auto& [serial, subscription] : subscriptions_) {
    patches_.leave(serial);
    sums_.leave(serial);
  }
  subscriptions_.clear();
}

void Shelf::look_at_common() {
  slots_.note_common(herald_.common());
  slots_.note_doomed(herald_.doomed());
}

void Shelf::show() {
  if (!served() || std::exchange(shown_, true)) return;
  context_.records_changed = true;
  context_.directory.publish(to_text(ShelfKey{key_}), encode(record_));
}

void Shelf::step() {
  herald_.step();
  look_at_common();
  make_sums();
}

Taken Shelf::subscribe(const PeerConnectionPtr& connection, const AgentMessage& message) {
  const auto& wish = std::get<Subscribe>(message.body);
  try {
    const auto served = readers_.serve(context_.catalog, senders_, wish, {}, nullptr);
    if (!served) return Taken::later;
    serve(connection, message.serial, wish, *served);
  } catch (const Error& error) {
    context_.connections.send(*connection, message.generation, message.serial,
                              Shelved{error.status(), {}, 0});
  }
  return Taken::done;
}

void Shelf::serve(const PeerConnectionPtr& connection, std::uint64_t serial, const Subscribe& wish,
                  const ReaderGroups::Served& served) {
  if (subscriptions_.contains(serial)) return;
  const auto older = std::ranges::find_if(subscriptions_, [&](const auto& entry) {
    return entry.second.reader == wish.reader && entry.second.side == wish.side;
  });
  if (older != subscriptions_.end()) unsubscribe(older->first);
  Shelved answer{{}, {}, slots_.common()};
  if (wish.promises) subscribe_to_patches(serial, served);
  for (std::size_t slot = 0; slot < regions_.size(); ++slot) {
    for (std::size_t at = 0; at < served.streams.size(); ++at) {
      regions_[slot]->serve(stream_number(serial, wish.streams[at]), served.streams[at]);
    }
    const Slot& now = slots_.all()[slot];
    const bool holds = now.state == SlotState::complete;
    answer.slots.push_back({regions_[slot]->number(), holds ? now.version : 0, now.ticket});
  }
  subscriptions_[serial] = {connection, wish.reader, wish.side};
  context_.at(Step::subscribed);
  context_.connections.send(*connection, generation(), serial, std::move(answer));
  if (finished_) {
    context_.connections.send(*connection, generation(), serial, Finished{slots_.newest()});
  }
}

void Shelf::subscribe_to_patches(std::uint64_t serial, const ReaderGroups::Served& served) {
  std::vector<std::shared_ptr<const plan::Stream>> streams;
  for (const plan::Stream& stream : served.streams) {
    streams.push_back(std::make_shared<const plan::Stream>(stream));
  }
  patches_.subscribe(serial, std::move(streams));
}

void Shelf::follow(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (!herald_.is_first()) return;
  herald_.add_follower(connection, message.serial, std::get<Follow>(message.body));
}

bool Shelf::is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
  if (message.generation != generation()) return false;
  const auto found = subscriptions_.find(message.serial);
  return (found != subscriptions_.end() && found->second.connection == connection) ||
         herald_.knows(connection, message.serial);
}

void Shelf::on_message(const PeerConnectionPtr& connection, const AgentMessage& message) {
  if (message.generation != generation()) return;
  if (herald_.knows(connection, message.serial)) {
    herald_.on_message(connection, message);
    return look_at_common();
  }
  const auto found = subscriptions_.find(message.serial);
  if (found == subscriptions_.end() || found->second.connection != connection) return;
  std::visit(Overloaded{
                 [&](const Hold& hold) { on_hold(found->second, message.serial, hold); },
                 [&](const AskPatch& ask) { on_ask(found->second, message.serial, ask); },
                 [&](const AskSums& sums) { on_ask_sums(found->second, message.serial, sums); },
                 [&](const Leave&) { unsubscribe(message.serial); },
                 // These messages are not for a shelf.
                 [](const ToSource auto&) {}, [](const ToReader auto&) {},
                 [](const ToPuller auto&) {}, [](const AmongSenders auto&) {},
                 [](const AmongPullers auto&) {}, [](const Subscribe&) {},  // the shelves took it
             },
             message.body);
}

void Shelf::on_hold(const Subscription& subscription, std::uint64_t serial, const Hold& hold) {
  Wish wish{subscription.reader, {hold.versions.begin(), hold.versions.end()}, std::nullopt};
  if (hold.newest) wish.from = slots_.newest();
  slots_.hold(serial, std::move(wish));
  if (!hold.newest && hold.versions.empty()) patches_.release(serial);
  if (!hold.newest) return;
  context_.connections.send(*subscription.connection, generation(), serial,
                            Held{slots_.newest(), slots_.common()});
}

void Shelf::on_ask(const Subscription& subscription, std::uint64_t serial, const AskPatch& ask) {
  const auto slot = slot_of(ask.version);
  context_.connections.send(
      *subscription.connection, generation(), serial,
      patches_.answer(serial, ask, slot ? tensors_of(*slot) : std::vector<TensorView>()));
}

void Shelf::on_ask_sums(const Subscription& subscription, std::uint64_t serial,
                        const AskSums& ask) {
  const auto slot = slot_of(ask.version);
  const auto streams = patches_.streams_of(serial);
  if (slot && !streams.empty() && ask.verify != Verify::off) {
    return sums_.ask(serial, ask, streams, tensors_of(*slot));
  }
  context_.connections.send(*subscription.connection, generation(), serial,
                            VersionSums{ask.version});
}

// The slot may have been taken meanwhile: then these are sums of nothing.
void Shelf::make_sums() {
  const auto done = sums_.step();
  if (!done) return;
  PeerConnection& to = *subscriptions_.at(done->serial).connection;
  const std::vector<std::uint64_t>& sums = done->sums;
  if (!slot_of(done->version) || sums.empty()) {
    context_.connections.send(to, generation(), done->serial, VersionSums{done->version});
    return;
  }
  for (std::size_t first = 0; first < sums.size(); first += most_sums) {
    const std::size_t end = std::min(sums.size(), first + most_sums);
    VersionSums some{done->version, sums.size(), first, {}};
    some.values.assign(sums.begin() + static_cast<std::ptrdiff_t>(first),
                       sums.begin() + static_cast<std::ptrdiff_t>(end));
    context_.connections.send(to, generation(), done->serial, std::move(some));
  }
}

void Shelf::on_lost(const PeerConnectionPtr& connection) {
  herald_.on_lost(connection);
  for (auto each = subscriptions_.begin(); each != subscriptions_.end();) {
    const auto& [serial, subscription] = *each++;
    if (subscription.connection == connection) unsubscribe(serial);
  }
}

void Shelf::unsubscribe(std::uint64_t serial) {
  slots_.release(serial);
  patches_.leave(serial);
  sums_.leave(serial);
  subscriptions_.erase(serial);
}

void Shelf::tell_all(const MessageBody& body) {
  for (const auto& [serial, subscription] : subscriptions_) {
    context_.connections.send(*subscription.connection, generation(), serial, body);
  }
}

}  // namespace tensorbus::bus
