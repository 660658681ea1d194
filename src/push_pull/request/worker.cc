#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "push_pull/request/pack.h"
#include "push_pull/request/worker_core.h"
#include "tensor/view.h"

namespace tensorbus::push_pull {
namespace {

// Requests that nobody has waited for. Each request has a word for every server.
constexpr std::size_t most_unwaited = 1024;  // requests
constexpr std::size_t words_bytes = (most_unwaited + wire::most_standing) * word_bytes;
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

Worker::Impl::Word& Worker::Impl::word(ServerState& state, const SentRequest& request) const {
  return *reinterpret_cast<Word*>(state.words.memory.get() + request.index * word_bytes);
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
      if (item.tensor.on_device()) {
        throw Error(Code::unsupported,
                    fmt::format("the tensor of key {} is on cuda:{}: give a copy in the host's "
                                "memory, as DeviceItems does",
                                item.key, item.tensor.device));
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

// A server that has as much of this worker as it may.
Worker::Impl::ServerState* Worker::Impl::crowded(std::size_t bytes) {
  for (ServerState& state : states_) {
    if (state.requests >= options_.most_requests ||
        (state.requests > 0 && state.bytes + bytes > options_.most_bytes)) {
      return &state;
    }
  }
  return nullptr;
}

Worker::Impl::SentRequest& Worker::Impl::new_request() {
  if (free_requests_.empty()) clear_up();
  if (free_requests_.empty()) {
    if (requests_.size() >= most_unwaited + recurring_.size()) {
      throw Error(Code::queue_full,
                  fmt::format("{} requests have not been waited for", most_unwaited));
    }
    requests_.push_back(std::make_unique<SentRequest>());
    requests_.back()->index = requests_.size() - 1;
    requests_.back()->legs.resize(servers());
    free_requests_.reserve(most_unwaited);
    ended_.reserve(most_unwaited);
    free_requests_.push_back(requests_.back().get());
  }
  SentRequest& request = *free_requests_.back();
  free_requests_.pop_back();
  return request;
}

void Worker::Impl::clear_up() {
  for (SentRequest* const request : ended_) {
    by_number_.remove(request->number);
    release(*request);
  }
  ended_.clear();
}

void Worker::Impl::release(SentRequest& request) {
  for (Leg& leg : request.legs) {
    leg.over = true;
    if (!leg.status.ok()) leg.status = {};
  }
  request.under_way = false;
  request.finishing = false;
  request.abandoned = false;
  if (request.keep != nullptr) dropped_.push_back(std::move(request.keep));
  if (request.standing != 0) return;
  for (std::size_t server = 0; server < servers(); ++server) {
    give_back_slots(states_[server], request.legs[server]);
  }
  free_targets(request);
  free_requests_.push_back(&request);
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
  const std::size_t size = slot_size(bytes);
  // Those who wait have asked for one each. Whoever takes one before them asks for another in its
  // place: it may be kept for good.
  if (!state.awaited_slots.contains(size)) {
    if (const auto slot = state.push_slots.take(bytes)) return *slot;
  }
  wire::Message message(wire::Kind::want_slot);
  message.put(wire::WantSlot{size});
  state.partner->send(message.bytes());
  const std::uint64_t refusals = state.refusals;
  struct Awaiting {
    ~Awaiting() { sizes.erase(own); }
    std::multiset<std::size_t>& sizes;
    std::multiset<std::size_t>::iterator own;
  };
  const Awaiting awaiting{state.awaited_slots, state.awaited_slots.insert(size)};
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

void Worker::Impl::reserve_pushes(Lock& lock, SentRequest& request, std::span<const Item> pushes,
                                  Deadline deadline) {
  for (std::size_t server = 0; server < servers(); ++server) {
    ServerState& state = states_[server];
    Leg& leg = request.legs[server];
    for (std::size_t i = 0; i < pushes.size(); ++i) {
      const std::size_t bytes = request.pushes[i].bytes;
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

void Worker::Impl::reserve_pulls(SentRequest& request, std::span<const Item> pulls) {
  request.pulls_each = pulls.size() / servers();
  for (std::size_t server = 0; server < servers(); ++server) {
    for (const Item& item : pulls.subspan(server * request.pulls_each, request.pulls_each)) {
      const TensorView& tensor = item.tensor;
      Target& target = request.pulls.emplace_back();
      target.data = tensor.data;
      target.dtype = tensor.dtype;
      target.measured = measure(tensor);
      if (!target.measured.dense) {
        target.dims = tensor.shape.size();
        target.first = request.extents.size();
        request.extents.insert(request.extents.end(), tensor.shape.begin(), tensor.shape.end());
        request.extents.insert(request.extents.end(), tensor.strides.begin(), tensor.strides.end());
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

// Whether this server writes into a pull tensor itself, where the worker sees bytes of the server
// and not its messages. Otherwise the worker puts the bytes there, and a worker that gives up a
// request simply does not.
bool Worker::Impl::needs_word(SentRequest& request, std::size_t server) const {
  return states_[server].partner->shares_memory() &&
         std::ranges::any_of(targets(request, server), [](const Target& target) {
           return straight(target) && target.measured.bytes > 0;
         });
}

std::span<Worker::Impl::Target> Worker::Impl::targets(SentRequest& request,
                                                      std::size_t server) const {
  // The request has fewer pulls if it fails while pulls are reserved.
  const std::size_t first = std::min(server * request.pulls_each, request.pulls.size());
  return std::span(request.pulls)
      .subspan(first, std::min(request.pulls_each, request.pulls.size() - first));
}

void Worker::Impl::close_targets(std::size_t server, SentRequest& request) {
  for (Target& target : targets(request, server)) {
    if (std::exchange(target.once, false)) states_[server].partner->close_once(target.place);
  }
}

void Worker::Impl::free_targets(SentRequest& request) {
  for (std::size_t server = 0; server < servers(); ++server) {
    ServerState& state = states_[server];
    close_targets(server, request);
    for (Target& target : targets(request, server)) {
      if (straight(target)) continue;
      if (state.pull_slots.idle_bytes() + target.slot.bytes <= options_.most_bytes) {
        state.pull_slots.put(std::move(target.slot));
      } else {
        target.slot = {};
        if (!state.partner->lost()) state.partner->trim();
      }
    }
  }
  request.pushes.clear();
  request.pulls.clear();
  request.extents.clear();
}

// Puts the pushes where the servers find them.
void Worker::Impl::fill(Lock& lock, const SentRequest& request, std::span<const Item> pushes) {
  if (request.bytes * servers() > long_copy) lock.unlock();
  for (std::size_t server = 0; server < servers(); ++server) {
    for (std::size_t i = 0; i < pushes.size(); ++i) {
      std::byte* const memory = request.legs[server].pushes[i].slot.memory;
      if (memory != nullptr) pack(pushes[i].tensor, request.pushes[i], memory);
    }
  }
  if (!lock.owns_lock()) node_.loop().lock_again(lock);
  for (std::size_t server = 0; server < servers(); ++server) {
    Partner& partner = *states_[server].partner;
    if (partner.shares_memory()) continue;
    for (std::size_t i = 0; i < pushes.size(); ++i) {
      const TensorView& tensor = pushes[i].tensor;
      const wire::InletPlace& place = request.legs[server].pushes[i].slot.place;
      const auto [bytes, dense] = request.pushes[i];
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

void Worker::Impl::put_request(SentRequest& request, std::size_t server,
                               std::span<const Item> pushes) {
  const std::uint64_t word = needs_word(request, server) ? request.index + 1 : 0;
  message_.start(wire::Kind::request);
  message_.put(
      wire::RequestHead{request.number, word, pushes.size(), request.pulls_each, request.standing});
  for (std::size_t i = 0; i < pushes.size(); ++i) {
    const TensorView& tensor = pushes[i].tensor;
    const UsedSlot& used = request.legs[server].pushes[i];
    message_.put(
        wire::Push{pushes[i].key, used.slot.place, tensor.shape.size(),
                   static_cast<std::uint64_t>(tensor.dtype), used.landing != nullptr ? 1U : 0U},
        tensor.shape);
  }
  for (const Target& target : targets(request, server)) {
    message_.put(wire::Pull{target.place, target.measured.bytes});
  }
}

void Worker::Impl::send(SentRequest& request, const Wish& wish) {
  const std::int64_t sent = node_.ticker().now();
  for (std::size_t server = 0; server < servers(); ++server) {
    ServerState& state = states_[server];
    Leg& leg = request.legs[server];
    leg.times = {wish.handed_over, sent};
    if (state.partner->lost()) {
      leg.status = *state.partner->lost();
      continue;
    }
    if (needs_word(request, server)) {
      word(state, request)
          .store(word_of(request.number, RequestState::pending), std::memory_order_relaxed);
    }
    if (request.known) {
      message_.start(wire::Kind::again);
      message_.put(wire::Again{request.number, request.standing});
    } else {
      put_request(request, server, wish.pushes);
    }
    leg.over = false;
    leg.bytes = request.bytes;
    ++state.requests;
    state.bytes += request.bytes;
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
Worker::Impl::SentRequest& Worker::Impl::make(Lock& lock, const Wish& wish, Deadline deadline) {
  std::size_t bytes = 0;
  for (const Item& item : wish.pushes) bytes += bytes_of(item.tensor);
  wait_for_room(lock, bytes, deadline);
  // Large slots are used again while they are in the cache.
  if (bytes > small_request) clear_up();
  SentRequest& request = new_request();
  request.under_way = true;
  try {
    for (const Item& item : wish.pushes) request.pushes.push_back(measure(item.tensor));
    request.bytes = bytes;
    request.pool_changes = node_.pool().changes();
    reserve_pushes(lock, request, wish.pushes, deadline);
    reserve_pulls(request, wish.pulls);
    fill(lock, request, wish.pushes);
    check_servers();
  } catch (...) {
    for (Leg& leg : request.legs) {
      for (const UsedSlot& used : leg.pushes) {
        if (used.landing != nullptr) give_back(*used.landing);
      }
    }
    release(request);
    throw;
  }
  return request;
}

Handler Worker::Impl::dispatch(SentRequest& request, const Wish& wish,
                               std::shared_ptr<const void> keep) {
  request.number = by_number_.add(request);
  send(request, wish);
  // The rest while the request is on its way.
  request.known = request.standing != 0;
  request.keep = std::move(keep);
  request.handlers = wish.pushes.size() + request.pulls_each;
  request.first = by_handler_.add(request, request.handlers);
  ++counts_.requests;
  clear_up();
  return static_cast<Handler>(request.first);
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
