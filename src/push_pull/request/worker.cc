#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "push_pull/request/pack.h"
#include "push_pull/request/worker_core.h"
#include "tensor/view.h"

namespace tensorbus::push_pull {
namespace {

// Requests that nobody has waited for. Each has a word for every server.
constexpr std::size_t most_records = 1024;
constexpr std::size_t words_bytes = (most_records + wire::most_standing) * word_bytes;
constexpr std::size_t small_request = 4 * 1024;

}  // namespace

Worker::Impl::Impl(const NodeOptions& options)
    : options_(options),
      states_(static_cast<std::size_t>(std::max(options.job.servers, 0))),
      history_(most_finished),
      node_(Role::worker, options, *this) {
  for (Finished& each : history_) each.traces.reserve(servers());
}

Worker::Impl::~Impl() = default;

void Worker::Impl::on_up(Partner& partner) {
  ServerState& state = states_[static_cast<std::size_t>(partner.group())];
  state.words = partner.make_slot(words_bytes);
  std::memset(state.words.memory.get(), 0, words_bytes);
  state.partner = &partner;
  if (!partner.shares_memory()) return;
  message_.start(wire::Kind::words);
  message_.put(wire::Words{state.words.place, words_bytes});
  partner.send(message_.bytes());
}

Worker::Impl::Word& Worker::Impl::word(ServerState& state, const Record& record) const {
  return *reinterpret_cast<Word*>(state.words.memory.get() + record.index * word_bytes);
}

void Worker::Impl::check_items(std::span<const Item> pushes, std::span<const Item> pulls) const {
  if (pushes.empty() && pulls.empty()) {
    throw Error(Code::invalid_argument, "there is nothing to push and nothing to pull");
  }
  if (pulls.size() % servers() != 0) {
    throw Error(Code::invalid_argument,
                fmt::format("{} pull tensors cannot be divided among {} servers; each answers the "
                            "same number",
                            pulls.size(), servers()));
  }
  for (const auto& items : {pushes, pulls}) {
    for (const Item& item : items) {
      if (item.key < 0) {
        throw Error(Code::invalid_argument, fmt::format("key {} is negative", item.key));
      }
    }
  }
  for (const Item& item : pulls) {
    if (item.tensor.read_only || repeats_itself(item.tensor)) {
      throw Error(Code::invalid_argument,
                  fmt::format("the pull tensor of key {} cannot be written", item.key));
    }
  }
}

void Worker::Impl::check_servers() const {
  for (const ServerState& state : states_) {
    if (state.partner->lost()) {
      throw Error(Code::peer_lost, fmt::format("{} is gone: {}", state.partner->name(),
                                               state.partner->lost()->message));
    }
  }
}

// A server that has as much of us as it may.
Worker::Impl::ServerState* Worker::Impl::crowded(std::size_t bytes) {
  for (ServerState& state : states_) {
    if (state.requests >= options_.most_requests ||
        (state.requests > 0 && state.bytes + bytes > options_.most_bytes)) {
      return &state;
    }
  }
  return nullptr;
}

Worker::Impl::Record& Worker::Impl::new_record() {
  if (free_records_.empty()) clear_up();
  if (free_records_.empty()) {
    if (records_.size() >= most_records + recurring_.size()) {
      throw Error(Code::queue_full,
                  fmt::format("{} requests have not been waited for", most_records));
    }
    records_.push_back(std::make_unique<Record>());
    records_.back()->index = records_.size() - 1;
    records_.back()->legs.resize(servers());
    free_records_.reserve(most_records);
    ended_.reserve(most_records);
    free_records_.push_back(records_.back().get());
  }
  Record& record = *free_records_.back();
  free_records_.pop_back();
  return record;
}

void Worker::Impl::clear_up() {
  for (Record* const record : ended_) {
    by_number_.remove(record->number);
    release(*record);
  }
  ended_.clear();
}

void Worker::Impl::release(Record& record) {
  for (Leg& leg : record.legs) {
    leg.over = true;
    if (!leg.status.ok()) leg.status = {};
  }
  record.under_way = false;
  record.finishing = false;
  record.abandoned = false;
  if (record.keep != nullptr) dropped_.push_back(std::move(record.keep));
  if (record.standing != 0) return;
  for (std::size_t server = 0; server < servers(); ++server) {
    give_back_slots(states_[server], record.legs[server]);
  }
  free_targets(record);
  free_records_.push_back(&record);
}

void Worker::Impl::put_slot(ServerState& state, PeerSlot slot) {
  if (state.push_slots.idle_bytes() + slot.bytes <= options_.most_bytes) {
    if (slot.memory != nullptr) fetch_early(slot.memory, slot.bytes, true);
    return state.push_slots.put(slot);
  }
  --state.slots;
  wire::Message message(wire::Kind::free_slot);
  message.put(wire::FreeSlot{slot.place});
  state.partner->send(message.bytes());
}

void Worker::Impl::give_back_slots(ServerState& state, Leg& leg) {
  for (UsedSlot& used : leg.pushes) {
    if (state.partner->lost()) break;
    if (used.landing == nullptr) put_slot(state, used.slot);
  }
  leg.pushes.clear();
}

PeerSlot Worker::Impl::take_slot(Lock& lock, ServerState& state, std::size_t bytes,
                                 Deadline deadline) {
  if (const auto slot = state.push_slots.take(bytes)) return *slot;
  wire::Message message(wire::Kind::want_slot);
  message.put(wire::WantSlot{slot_size(bytes)});
  state.partner->send(message.bytes());
  const std::uint64_t refusals = state.refusals;
  std::optional<PeerSlot> slot;
  const bool over = node_.loop().wait(lock, deadline, [&] {
    return state.partner->lost() || state.refusals != refusals ||
           (slot = state.push_slots.take(bytes)).has_value();
  });
  if (slot) return *slot;
  check_servers();
  if (over) throw Error(state.refusal);
  throw Error(Code::timeout,
              fmt::format("{} gave no slot for {} bytes in time", state.partner->name(), bytes));
}

void Worker::Impl::reserve_pushes(Lock& lock, Record& record, std::span<const Item> pushes,
                                  Deadline deadline) {
  for (std::size_t server = 0; server < servers(); ++server) {
    ServerState& state = states_[server];
    Leg& leg = record.legs[server];
    for (std::size_t i = 0; i < pushes.size(); ++i) {
      const std::size_t bytes = record.pushes[i].bytes;
      if (bytes == 0) {
        leg.pushes.push_back({});
        continue;
      }
      const auto landing = state.landings.find(pushes[i].key);
      if (landing != state.landings.end() && bytes <= landing->second.bytes &&
          take(*landing->second.word, LandingState::pushed)) {
        const Landing& there = landing->second;
        leg.pushes.push_back({{there.place, there.bytes, there.memory}, there.word});
      } else {
        leg.pushes.push_back({take_slot(lock, state, bytes, deadline), nullptr});
      }
    }
  }
}

void Worker::Impl::reserve_pulls(Record& record, std::span<const Item> pulls) {
  record.pulls_each = pulls.size() / servers();
  for (std::size_t server = 0; server < servers(); ++server) {
    for (const Item& item : pulls.subspan(server * record.pulls_each, record.pulls_each)) {
      const TensorView& tensor = item.tensor;
      Target& target = record.pulls.emplace_back();
      target.data = tensor.data;
      target.dtype = tensor.dtype;
      target.measured = measure(tensor);
      if (!target.measured.dense) {
        target.dims = tensor.shape.size();
        target.first = record.extents.size();
        record.extents.insert(record.extents.end(), tensor.shape.begin(), tensor.shape.end());
        record.extents.insert(record.extents.end(), tensor.strides.begin(), tensor.strides.end());
      }
      if (target.measured.bytes > 0) reserve_pull(states_[server], target);
    }
  }
}

void Worker::Impl::reserve_pull(ServerState& state, Target& target) {
  if (target.measured.dense && !state.partner->shares_memory()) {
    target.place = state.partner->open_once({target.data, target.measured.bytes});
    target.once = true;
    return;
  }
  if (target.measured.dense) {
    if (const auto place =
            state.partner->open_in(node_.pool(), target.data, target.measured.bytes)) {
      target.place = *place;
      return;
    }
  }
  auto slot = state.pull_slots.take(target.measured.bytes);
  target.slot =
      slot ? std::move(*slot) : state.partner->make_slot(slot_size(target.measured.bytes));
  target.place = target.slot.place;
}

// Whether this server writes into a pull tensor itself, where we see its bytes and not its
// messages. Otherwise it is we who put them there, and whoever gives up a request simply does not.
bool Worker::Impl::needs_word(Record& record, std::size_t server) const {
  return states_[server].partner->shares_memory() &&
         std::ranges::any_of(targets(record, server), [](const Target& target) {
           return straight(target) && target.measured.bytes > 0;
         });
}

std::span<Worker::Impl::Target> Worker::Impl::targets(Record& record, std::size_t server) const {
  // Fewer if it fails while they are reserved.
  const std::size_t first = std::min(server * record.pulls_each, record.pulls.size());
  return std::span(record.pulls)
      .subspan(first, std::min(record.pulls_each, record.pulls.size() - first));
}

void Worker::Impl::close_targets(std::size_t server, Record& record) {
  for (Target& target : targets(record, server)) {
    if (std::exchange(target.once, false)) states_[server].partner->close_once(target.place);
  }
}

void Worker::Impl::free_targets(Record& record) {
  for (std::size_t server = 0; server < servers(); ++server) {
    ServerState& state = states_[server];
    close_targets(server, record);
    for (Target& target : targets(record, server)) {
      if (straight(target)) continue;
      if (state.pull_slots.idle_bytes() + target.slot.bytes <= options_.most_bytes) {
        state.pull_slots.put(std::move(target.slot));
      } else {
        target.slot = {};
        if (!state.partner->lost()) state.partner->trim();
      }
    }
  }
  record.pushes.clear();
  record.pulls.clear();
  record.extents.clear();
}

// Puts the pushes where the servers find them.
void Worker::Impl::fill(Lock& lock, const Record& record, std::span<const Item> pushes) {
  if (record.bytes * servers() > long_copy) lock.unlock();
  for (std::size_t server = 0; server < servers(); ++server) {
    for (std::size_t i = 0; i < pushes.size(); ++i) {
      std::byte* const memory = record.legs[server].pushes[i].slot.memory;
      if (memory != nullptr) pack(pushes[i].tensor, record.pushes[i], memory);
    }
  }
  if (!lock.owns_lock()) node_.loop().lock_again(lock);
  for (std::size_t server = 0; server < servers(); ++server) {
    Partner& partner = *states_[server].partner;
    if (partner.shares_memory()) continue;
    for (std::size_t i = 0; i < pushes.size(); ++i) {
      const TensorView& tensor = pushes[i].tensor;
      const wire::InletPlace& place = record.legs[server].pushes[i].slot.place;
      const auto [bytes, dense] = record.pushes[i];
      if (dense) {
        partner.write(place, {tensor.data, bytes});
      } else {
        packed_.resize(std::max(packed_.size(), bytes));
        pack(tensor, packed_.data());
        partner.write(place, std::span(packed_).first(bytes));
      }
    }
  }
}

void Worker::Impl::put_request(Record& record, std::size_t server, std::span<const Item> pushes) {
  const std::uint64_t word = needs_word(record, server) ? record.index + 1 : 0;
  message_.start(wire::Kind::request);
  message_.put(
      wire::RequestHead{record.number, word, pushes.size(), record.pulls_each, record.standing});
  for (std::size_t i = 0; i < pushes.size(); ++i) {
    const TensorView& tensor = pushes[i].tensor;
    const UsedSlot& used = record.legs[server].pushes[i];
    message_.put(
        wire::Push{pushes[i].key, used.slot.place, tensor.shape.size(),
                   static_cast<std::uint64_t>(tensor.dtype), used.landing != nullptr ? 1U : 0U},
        tensor.shape);
  }
  for (const Target& target : targets(record, server)) {
    message_.put(wire::Pull{target.place, target.measured.bytes});
  }
}

void Worker::Impl::send(Record& record, const Wish& wish) {
  const std::int64_t sent = node_.ticker().now();
  for (std::size_t server = 0; server < servers(); ++server) {
    ServerState& state = states_[server];
    Leg& leg = record.legs[server];
    leg.times = {wish.handed_over, sent};
    if (state.partner->lost()) {
      leg.status = *state.partner->lost();
      continue;
    }
    if (needs_word(record, server)) {
      word(state, record)
          .store(word_of(record.number, RequestState::pending), std::memory_order_relaxed);
    }
    if (record.known) {
      message_.start(wire::Kind::again);
      message_.put(wire::Again{record.number, record.standing});
    } else {
      put_request(record, server, wish.pushes);
    }
    leg.over = false;
    leg.bytes = record.bytes;
    ++state.requests;
    state.bytes += record.bytes;
    state.partner->send(message_.bytes());
  }
}

void Worker::Impl::wait_for_room(Lock& lock, std::size_t bytes, Deadline deadline) {
  const bool room = node_.loop().wait(lock, deadline, [&] {
    check_servers();
    return crowded(bytes) == nullptr;
  });
  if (room) return;
  const ServerState& state = *crowded(bytes);
  throw Error(Code::timeout,
              fmt::format("{} has {} requests of ours with {} bytes and answers none in time",
                          state.partner->name(), state.requests, state.bytes));
}

// With memory at the servers, and the pushes in it.
Worker::Impl::Record& Worker::Impl::make(Lock& lock, const Wish& wish, Deadline deadline) {
  std::size_t bytes = 0;
  for (const Item& item : wish.pushes) bytes += bytes_of(item.tensor);
  wait_for_room(lock, bytes, deadline);
  // Large slots are used again while they are in the cache.
  if (bytes > small_request) clear_up();
  Record& record = new_record();
  record.under_way = true;
  try {
    for (const Item& item : wish.pushes) record.pushes.push_back(measure(item.tensor));
    record.bytes = bytes;
    record.pool_changes = node_.pool().changes();
    reserve_pushes(lock, record, wish.pushes, deadline);
    reserve_pulls(record, wish.pulls);
    fill(lock, record, wish.pushes);
    check_servers();
  } catch (...) {
    for (Leg& leg : record.legs) {
      for (const UsedSlot& used : leg.pushes) {
        if (used.landing != nullptr) give_back(*used.landing);
      }
    }
    release(record);
    throw;
  }
  return record;
}

Handler Worker::Impl::dispatch(Record& record, const Wish& wish, std::shared_ptr<const void> keep) {
  record.number = by_number_.add(record);
  send(record, wish);
  // The rest while the request is on its way.
  record.known = record.standing != 0;
  record.keep = std::move(keep);
  record.handlers = wish.pushes.size() + record.pulls_each;
  record.first = by_handler_.add(record, record.handlers);
  ++counts_.requests;
  clear_up();
  return static_cast<Handler>(record.first);
}

Handler Worker::Impl::push_pull(std::span<const Item> pushes, std::span<const Item> pulls,
                                Deadline deadline, std::shared_ptr<const void> keep) {
  const std::int64_t handed_over = node_.ticker().now();
  std::vector<std::shared_ptr<const void>> dropped;  // before the lock: let go after it
  Lock lock = node_.loop().lock();
  if (!dropped_.empty()) std::swap(dropped, dropped_);
  const bool may_recur = Likeness::is_worth_it(pushes, pulls);
  if (may_recur) likeness_.take(pushes, pulls);
  return send_or_make(lock, {pushes, pulls, may_recur ? &likeness_ : nullptr, nullptr, handed_over},
                      deadline, std::move(keep));
}

void Worker::Impl::on_message(Partner& partner, wire::Kind kind, wire::Body& message) {
  ServerState& state = states_[static_cast<std::size_t>(partner.group())];
  switch (kind) {
    case wire::Kind::answer:
      return on_answer(state, message);
    case wire::Kind::slot:
      return on_slot(state, message);
    case wire::Kind::landing:
      return on_landing(state, message);
    default:
      throw Error(Code::failed, "a message that only workers send");
  }
}

void Worker::Impl::on_slot(ServerState& state, wire::Body& message) {
  const auto slot = wire::take<wire::Slot>(message);
  const std::string_view text = message.raw(message.left());
  if (slot.code != 0) {
    state.refusal = {wire::checked_code(slot.code),
                     fmt::format("{}: {}", state.partner->name(), text)};
    ++state.refusals;
    return;
  }
  if (slot.bytes != slot_size(slot.bytes)) throw Error(Code::failed, "a slot of an odd size");
  state.push_slots.put(
      {slot.place, slot.bytes, state.partner->peer_memory(slot.place, slot.bytes)});
  ++state.slots;
}

void Worker::Impl::on_landing(ServerState& state, wire::Body& message) {
  const auto landing = wire::take<wire::Landing>(message);
  message.end();
  if (landing.place.inlet == 0) {
    state.landings.erase(static_cast<std::int64_t>(landing.key));
    return;
  }
  std::byte* const memory = state.partner->peer_memory(landing.place, landing.bytes);
  Word* const word = state.partner->peer_word(landing.word);
  if (memory == nullptr) throw Error(Code::failed, "a landing that we cannot see");
  state.landings.insert_or_assign(static_cast<std::int64_t>(landing.key),
                                  Landing{landing.place, landing.bytes, memory, word});
}

WorkerCounts Worker::Impl::counts() {
  const Lock lock = node_.loop().lock();
  WorkerCounts counts = counts_;
  for (const ServerState& state : states_) counts.slots += state.slots;
  return counts;
}

Worker::Worker(const NodeOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Worker::~Worker() = default;

Handler Worker::push_pull(std::span<const Item> pushes, std::span<const Item> pulls,
                          Deadline deadline, std::shared_ptr<const void> keep) {
  return impl_->push_pull(pushes, pulls, deadline, std::move(keep));
}
PreparedRequest Worker::prepare(std::span<const Item> pushes, std::span<const Item> pulls,
                                std::shared_ptr<const void> keep) {
  PreparedRequest prepared;
  prepared.content_ = impl_->prepare(pushes, pulls, std::move(keep));
  return prepared;
}
Handler Worker::push_pull(const PreparedRequest& prepared, Deadline deadline) {
  return impl_->push_pull(prepared.content_.get(), deadline);
}
void Worker::wait(Handler handler, Deadline deadline) { impl_->wait(handler, deadline); }
std::vector<Handler> Worker::handlers(Handler handler) const { return impl_->handlers(handler); }
Trace Worker::trace(Handler handler, std::optional<int> server) const {
  return impl_->trace(handler, server);
}
std::shared_ptr<std::byte> Worker::allocate(std::size_t bytes) {
  return impl_->node().pool().allocate(bytes);
}
void Worker::barrier(const Party& party, Deadline deadline) {
  impl_->node().barrier(party, deadline);
}
void Worker::stop(Deadline deadline) { impl_->node().stop(deadline); }
WorkerCounts Worker::counts() const { return impl_->counts(); }

}  // namespace tensorbus::push_pull
