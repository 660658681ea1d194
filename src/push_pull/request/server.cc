#include "tensorbus/push_pull.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "push_pull/request/pack.h"
#include "push_pull/request/server_core.h"
#include "push_pull/request/slots.h"

namespace tensorbus::push_pull {

Server::Impl::Impl(const NodeOptions& options)
    : workers_(static_cast<std::size_t>(std::max(options.job.workers, 0))),
      any_lost_(workers_.empty()),
      node_(Role::server, options, *this) {}

Server::Impl::~Impl() = default;

void Server::Impl::on_up(Partner& partner) {
  workers_[static_cast<std::size_t>(partner.group())].partner = &partner;
}

Server::Impl::WorkerState& Server::Impl::worker_at(int group) {
  if (group < 0 || static_cast<std::size_t>(group) >= workers_.size()) {
    throw Error(Code::invalid_argument,
                fmt::format("there is no worker {}; the job has {}", group, workers_.size()));
  }
  return workers_[static_cast<std::size_t>(group)];
}

Server::Impl::Incoming& Server::Impl::new_incoming() {
  ++counts_.requests;
  if (free_ == nullptr) {
    incoming_.push_back(std::make_unique<Incoming>());
    free_ = incoming_.back().get();
  }
  Incoming& incoming = *free_;
  free_ = std::exchange(incoming.next, nullptr);
  incoming.under_way = true;
  return incoming;
}

void Server::Impl::release(Incoming& incoming) {
  --counts_.requests;
  for (const auto& landing : incoming.landed) {
    if (landing != nullptr) leave(*incoming.worker, *landing);
  }
  incoming.answers.clear();
  incoming.under_way = false;
  if (!incoming.stands) recycle(incoming);
}

void Server::Impl::recycle(Incoming& incoming) {
  incoming.tensors.clear();
  incoming.landed.clear();
  incoming.dims.clear();
  incoming.extents.clear();
  incoming.pulls.clear();
  incoming.targets.clear();
  incoming.next = std::exchange(free_, &incoming);
}

void Server::Impl::on_message(Partner& partner, wire::Kind kind, wire::Body& message) {
  WorkerState& worker = workers_[static_cast<std::size_t>(partner.group())];
  switch (kind) {
    case wire::Kind::request:
      return on_request(worker, message);
    case wire::Kind::again:
      return on_again(worker, message);
    case wire::Kind::forget:
      return on_forget(worker, message);
    case wire::Kind::want_slot:
      return on_want_slot(worker, message);
    case wire::Kind::free_slot:
      return on_free_slot(worker, message);
    case wire::Kind::words:
      return on_words(worker, message);
    default:
      throw Error(Code::failed, "a message that only servers send");
  }
}

void Server::Impl::on_want_slot(WorkerState& worker, wire::Body& message) {
  const auto wanted = wire::take<wire::WantSlot>(message);
  message.end();
  wire::Slot slot{wanted.bytes, {}, 0};
  std::string refusal;
  try {
    if (wanted.bytes != slot_size(wanted.bytes)) {
      throw Error(Code::failed, "a slot of an odd size");
    }
    OwnSlot made = worker.partner->make_slot(wanted.bytes);
    slot.place = made.place;
    worker.slots.emplace(std::pair(made.place.inlet, made.place.offset), std::move(made));
  } catch (const Error& error) {
    slot.code = static_cast<std::uint64_t>(error.code());
    refusal = error.what();
  }
  message_.start(wire::Kind::slot);
  message_.put(slot);
  message_.put_text(refusal);
  worker.partner->send(message_.bytes());
}

void Server::Impl::on_words(WorkerState& worker, wire::Body& message) {
  const auto words = wire::take<wire::Words>(message);
  message.end();
  worker.words = worker.partner->peer_memory(words.place, words.bytes);
  worker.words_bytes = words.bytes;
  if (words.place.offset % word_bytes != 0) throw Error(Code::failed, "words that are not aligned");
}

Server::Impl::Word& Server::Impl::word_at(const WorkerState& worker, std::uint64_t index) const {
  if (worker.words == nullptr || index >= worker.words_bytes / word_bytes) {
    throw Error(Code::failed, "a request without a word");
  }
  return *reinterpret_cast<Word*>(worker.words + index * word_bytes);
}

void Server::Impl::on_free_slot(WorkerState& worker, wire::Body& message) {
  const auto freed = wire::take<wire::FreeSlot>(message);
  message.end();
  worker.slots.erase({freed.place.inlet, freed.place.offset});
  worker.partner->trim();
}

std::shared_ptr<Server::Impl::Landing> Server::Impl::landing_at(
    const WorkerState& worker, const wire::InletPlace& place) const {
  for (const auto& [key, landing] : worker.landings) {
    if (landing->place == place) return landing;
  }
  for (const auto& landing : worker.retired) {
    if (landing->place == place) return landing;
  }
  throw Error(Code::failed, "a push into a buffer that was not registered");
}

void Server::Impl::take_push(Incoming& incoming, wire::Numbers& message) const {
  const wire::Push push = wire::take_push(message);
  const Dtype dtype = wire::checked_dtype(push.dtype);
  const std::size_t first = incoming.extents.size();
  incoming.extents.resize(first + 2 * push.dims);
  std::int64_t* const shape = incoming.extents.data() + first;
  wire::take_extents(message, {shape, push.dims});
  const std::uint64_t bytes = wire::checked_bytes(dtype, {shape, push.dims});
  std::int64_t stride = 1;
  for (std::size_t dim = push.dims; dim-- > 0; stride *= std::max<std::int64_t>(shape[dim], 1)) {
    shape[push.dims + dim] = stride;
  }
  Received tensor;
  tensor.key = push.key;
  tensor.tensor.dtype = dtype;
  std::shared_ptr<Landing> landing;
  std::size_t room = 0;
  if (push.landed != 0) {
    landing = landing_at(*incoming.worker, push.place);
    tensor.tensor.data = landing->memory;
    tensor.memory = landing->keep;
    room = landing->bytes;
  } else if (bytes > 0) {
    const auto slot = incoming.worker->slots.find({push.place.inlet, push.place.offset});
    if (slot == incoming.worker->slots.end()) throw Error(Code::failed, "a push without a slot");
    tensor.tensor.data = slot->second.memory.get();
    tensor.memory = slot->second.memory;
    room = slot->second.bytes;
    fetch_early(tensor.tensor.data, bytes, false);
  }
  incoming.dims.push_back(push.dims);
  incoming.landed.push_back(std::move(landing));
  incoming.tensors.push_back(std::move(tensor));
  if (bytes > room) throw Error(Code::failed, "a push larger than its slot");
}

// Where shapes and strides lie is known when all are there.
void Server::Impl::bind_extents(Incoming& incoming) {
  std::span<const std::int64_t> extents(incoming.extents);
  for (std::size_t i = 0; i < incoming.tensors.size(); ++i) {
    const std::size_t dims = incoming.dims[i];
    incoming.tensors[i].tensor.shape = extents.first(dims);
    incoming.tensors[i].tensor.strides = extents.subspan(dims, dims);
    extents = extents.subspan(2 * dims);
  }
}

void Server::Impl::on_request(WorkerState& worker, wire::Body& decoder) {
  wire::Numbers message(decoder.raw(decoder.left()));
  const wire::RequestHead head = wire::take_head(message);
  Incoming& incoming = new_incoming();
  incoming.worker = &worker;
  incoming.number = head.number;
  incoming.received = node_.ticker().now_after_reading();
  try {
    incoming.word = head.word != 0 ? &word_at(worker, head.word - 1) : nullptr;
    for (std::uint64_t i = 0; i < head.pushes; ++i) take_push(incoming, message);
    for (std::uint64_t i = 0; i < head.pulls; ++i) {
      const wire::Pull pull = wire::take_pull(message);
      std::byte* const memory =
          pull.bytes > 0 ? worker.partner->peer_memory(pull.place, pull.bytes) : nullptr;
      if (memory != nullptr) fetch_early(memory, pull.bytes, true);
      incoming.pulls.push_back(pull);
      incoming.targets.push_back(memory);
    }
    message.end();
    if (head.standing != 0) keep_standing(incoming, head.standing);
  } catch (...) {
    release(incoming);
    throw;
  }
  bind_extents(incoming);
  queue(incoming);
}

void Server::Impl::queue(Incoming& incoming) {
  WorkerState& worker = *incoming.worker;
  if (!worker.landings.empty()) {
    if (const std::string why = objection(incoming); !why.empty()) {
      answer(incoming, incoming.received, {Code::invalid_argument, why});
      return release(incoming);
    }
  }
  (worker.last == nullptr ? worker.first : worker.last->next) = &incoming;
  worker.last = &incoming;
}

void Server::Impl::keep_standing(Incoming& incoming, std::uint64_t number) {
  auto& standing = incoming.worker->standing;
  if (number > standing.size() || standing[number - 1] != nullptr) {
    throw Error(Code::failed, "a request that comes again, under a number that it cannot have");
  }
  if (std::ranges::any_of(incoming.landed, [](const auto& each) { return each != nullptr; })) {
    throw Error(Code::failed, "a request that comes again, in a registered buffer");
  }
  standing[number - 1] = &incoming;
  incoming.stands = true;
}

void Server::Impl::stop_standing(Incoming& incoming) {
  incoming.stands = false;
  if (!incoming.under_way) recycle(incoming);
}

void Server::Impl::on_again(WorkerState& worker, wire::Body& message) {
  const auto again = wire::take<wire::Again>(message);
  message.end();
  const std::uint64_t at = again.standing - 1;
  Incoming* const incoming = at < worker.standing.size() ? worker.standing[at] : nullptr;
  if (incoming == nullptr || incoming->under_way) {
    throw Error(Code::failed, "a request that cannot come again");
  }
  for (const Received& each : incoming->tensors) fetch_early(each.tensor.data, 64, false);
  incoming->number = again.number;
  incoming->received = node_.ticker().now_after_reading();
  incoming->under_way = true;
  ++counts_.requests;
  queue(*incoming);
}

void Server::Impl::on_forget(WorkerState& worker, wire::Body& message) {
  const std::uint64_t at = wire::take<wire::Forget>(message).standing - 1;
  message.end();
  if (at >= worker.standing.size() || worker.standing[at] == nullptr) {
    throw Error(Code::failed, "a request to forget that never came");
  }
  stop_standing(*std::exchange(worker.standing[at], nullptr));
}

// A request that stays for the next time must not move into a registered buffer: a copy of it does.
Server::Impl::Incoming& Server::Impl::movable(Incoming& incoming) {
  if (!incoming.stands || incoming.worker->landings.empty()) return incoming;
  Incoming& copy = new_incoming();
  copy.worker = incoming.worker;
  copy.number = incoming.number;
  copy.word = incoming.word;
  copy.received = incoming.received;
  copy.tensors = incoming.tensors;
  copy.landed = incoming.landed;
  copy.dims = incoming.dims;
  copy.extents = incoming.extents;
  copy.pulls = incoming.pulls;
  copy.targets = incoming.targets;
  bind_extents(copy);
  release(incoming);
  return copy;
}

std::string Server::Impl::objection(const Incoming& incoming) const {
  const auto& landings = incoming.worker->landings;
  for (const Received& received : incoming.tensors) {
    const auto landing = landings.find(received.key);
    if (landing == landings.end()) continue;
    if (const std::size_t bytes = bytes_of(received.tensor); bytes > landing->second->bytes) {
      return fmt::format("the push of key {} has {} bytes; the buffer registered for it has {}",
                         received.key, bytes, landing->second->bytes);
    }
  }
  return {};
}

void Server::Impl::drop_queue(WorkerState& worker) {
  while (worker.first != nullptr) release(*std::exchange(worker.first, worker.first->next));
  worker.last = nullptr;
}

void Server::Impl::on_lost(Partner& partner) {
  any_lost_ = true;
  WorkerState& worker = workers_[static_cast<std::size_t>(partner.group())];
  for (Incoming*& standing : worker.standing) {
    if (standing != nullptr) stop_standing(*std::exchange(standing, nullptr));
  }
  drop_queue(worker);
  worker.slots.clear();
  // A push that the worker was writing never comes.
  for (const auto& [key, landing] : worker.landings) {
    auto expected = static_cast<std::uint64_t>(LandingState::pushed);
    landing->word->compare_exchange_strong(expected,
                                           static_cast<std::uint64_t>(LandingState::free));
  }
  worker.retired.clear();
}

void Server::Impl::report_losses(std::span<WorkerState* const> workers) {
  std::vector<std::string> gone;
  bool anyone_left = false;
  for (WorkerState* worker : workers) {
    if (!worker->partner->lost()) {
      anyone_left = true;
    } else if (!std::exchange(worker->reported, true)) {
      gone.push_back(
          fmt::format("{} is gone: {}", worker->partner->name(), worker->partner->lost()->message));
    }
  }
  if (!gone.empty()) throw Error(Code::peer_lost, fmt::format("{}", fmt::join(gone, "; ")));
  if (!anyone_left) throw Error(Code::peer_lost, "every worker that could ask is gone");
}

bool Server::Impl::is_missing(const WorkerState* worker) {
  return worker->first == nullptr && !worker->partner->lost();
}

void Server::Impl::get_batch(std::vector<Request>& batch, std::span<const int> workers,
                             Deadline deadline) {
  batch.clear();
  Lock lock = node_.loop().lock();
  if (!wanted_.empty()) {
    throw Error(Code::invalid_argument, "another thread is in get_batch");
  }
  struct Clear {
    std::vector<WorkerState*>& wanted;
    ~Clear() { wanted.clear(); }
  } const clear{wanted_};
  if (workers.empty()) {
    for (WorkerState& worker : workers_) wanted_.push_back(&worker);
  }
  if (!workers.empty()) {
    for (const int group : workers) wanted_.push_back(&worker_at(group));
    std::ranges::sort(wanted_);
    if (std::ranges::adjacent_find(wanted_) != wanted_.end()) {
      throw Error(Code::invalid_argument, "a worker is named twice");
    }
  }
  const bool complete = node_.loop().wait(lock, deadline, [&] {
    if (any_lost_) report_losses(wanted_);
    return std::ranges::none_of(wanted_, is_missing);
  });
  if (!complete) {
    std::vector<std::string> silent;
    for (const WorkerState* worker : wanted_) {
      if (is_missing(worker)) silent.push_back(worker->partner->name());
    }
    throw Error(Code::timeout, fmt::format("no request from {} in time", fmt::join(silent, ", ")));
  }
  for (WorkerState* worker : wanted_) {
    if (worker->first == nullptr) continue;
    Incoming& next = *worker->first;
    worker->first = std::exchange(next.next, nullptr);
    if (worker->first == nullptr) worker->last = nullptr;
    Incoming& incoming = movable(next);
    deliver(incoming);
    batch.push_back(
        {static_cast<Handler>(incoming.handler), worker->partner->group(), incoming.tensors});
  }
}

void Server::Impl::deliver(Incoming& incoming) {
  if (!incoming.worker->landings.empty()) move_to_landings(incoming);
  incoming.handler = by_handler_.add(incoming);
  incoming.given = node_.ticker().now();
}

void Server::Impl::move_to_landings(Incoming& incoming) {
  for (std::size_t i = 0; i < incoming.tensors.size(); ++i) {
    Received& received = incoming.tensors[i];
    const auto landing = incoming.worker->landings.find(received.key);
    if (landing == incoming.worker->landings.end()) continue;
    if (incoming.landed[i] == landing->second) {
      ++counts_.pushes_straight;
      continue;
    }
    if (!take(*landing->second->word, LandingState::delivered)) continue;  // see register_buffer()
    const std::size_t bytes = bytes_of(received.tensor);
    if (bytes > 0) std::memcpy(landing->second->memory, received.tensor.data, bytes);
    if (incoming.landed[i] != nullptr) leave(*incoming.worker, *incoming.landed[i]);
    incoming.landed[i] = landing->second;
    ++counts_.pushes_copied;
    received.tensor.data = landing->second->memory;
    received.memory = landing->second->keep;
  }
}

ServerCounts Server::Impl::counts() {
  const Lock lock = node_.loop().lock();
  ServerCounts counts = counts_;
  for (const WorkerState& worker : workers_) counts.slots += worker.slots.size();
  return counts;
}

Server::Server(const NodeOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Server::~Server() = default;

void Server::get_batch(std::vector<Request>& batch, std::span<const int> workers,
                       Deadline deadline) {
  impl_->get_batch(batch, workers, deadline);
}
void Server::respond(Handler handler, std::span<const TensorView> tensors) {
  impl_->respond(handler, tensors);
}
void Server::respond_rows(const TensorView& buffer, std::span<const TensorView> tensors,
                          std::span<const Handler> handlers, bool every_from_row_0) {
  impl_->respond_rows(buffer, tensors, handlers, every_from_row_0);
}
void Server::register_buffer(const TensorView& tensor, std::span<const int> workers,
                             std::span<const std::int64_t> keys, std::shared_ptr<const void> keep) {
  impl_->register_buffer(tensor, workers, keys, std::move(keep));
}
std::shared_ptr<std::byte> Server::allocate(std::size_t bytes) {
  return impl_->node().pool().allocate(bytes);
}
void Server::barrier(const Party& party, Deadline deadline) {
  impl_->node().barrier(party, deadline);
}
void Server::stop(Deadline deadline) { impl_->node().stop(deadline); }
ServerCounts Server::counts() const { return impl_->counts(); }

}  // namespace tensorbus::push_pull
