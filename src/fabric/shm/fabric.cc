#include "fabric/shm/fabric.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <typeinfo>

#include "base/bytes.h"
#include "base/overloaded.h"
#include "fabric/shm/core.h"
#include "os/process/fork.h"
#include "os/process/process.h"

namespace tensorbus::fabric {
namespace {

// How often descriptors are looked at while nobody sleeps: rings are cheaper to ask. By polls too,
// because a clock may stand still.
constexpr unsigned polls_per_look = 16 * 1024;
constexpr Duration look_every = std::chrono::milliseconds(1);
// A clock costs more than all the rest of a poll that finds nothing: the closer together polls
// come, the fewer of them look at one.
constexpr unsigned max_polls_per_clock = 64;
constexpr Duration clock_is_fresh = std::chrono::microseconds(5);
constexpr std::size_t chunks_per_poll = 4;
constexpr int messages_per_poll = 64;

class ShmRegion final : public Region {
 public:
  ShmRegion(ShmCore& core, std::shared_ptr<ShmExposed> exposed)
      : core_(core), exposed_(std::move(exposed)) {}
  ~ShmRegion() override {
    // A forked child has a copy of this object; the region is the parent's.
    if (os::fork_generation() != generation_) return;
    exposed_->alive->store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    core_.withdraw(exposed_->number);
  }
  std::uint64_t number() const noexcept override { return exposed_->number; }
  const Forms& forms() const noexcept override { return exposed_->forms; }
  Gate& gate() noexcept override { return exposed_->gate; }
  void serve(std::uint64_t number, plan::Stream stream) override {
    check_source(stream, exposed_->forms);
    exposed_->packers.erase(number);
    exposed_->blocks.erase(number);
    exposed_->streams.insert_or_assign(number, std::move(stream));
  }

 private:
  ShmCore& core_;
  std::shared_ptr<ShmExposed> exposed_;
  const unsigned generation_ = os::fork_generation();
};

}  // namespace

std::unique_ptr<Region> ShmCore::expose(std::span<const TensorView> tensors, Gate gate,
                                        std::shared_ptr<const Lender> lender) {
  if (!options_.pool->find(gate.counter().get(), sizeof(std::uint64_t))) {
    throw Error(Code::invalid_argument,
                "a gate that peers cannot see: use this fabric's make_gate()");
  }
  const std::uint64_t number = ++last_region_;
  auto exposed =
      std::make_shared<ShmExposed>(ShmExposed{number,
                                              {},
                                              memory_of(tensors, std::move(lender), &copiers_),
                                              options_.pool->allocate_word(number),
                                              std::move(gate),
                                              {},
                                              {}});
  for (const TensorView& tensor : tensors) {
    exposed->forms.push_back(form_of(tensor));
    extent_of(exposed->forms.back());
  }
  regions_[number] = exposed;
  return std::make_unique<ShmRegion>(*this, std::move(exposed));
}

const ShmPeer& ShmCore::connected(const Peer& any) const {
  // Every message comes by here: dynamic_cast takes as long as all the rest of sending it.
  if (typeid(any) == typeid(ShmPeer)) {
    const auto& peer = static_cast<const ShmPeer&>(any);
    if (peer.fabric == this && peer.up()) return peer;
  }
  throw Error(Code::peer_lost, "there is no connection to " + to_string(any.identity()));
}

ShmCore::PeerPtr ShmCore::usable(const Peer& any) const { return peers_.at(connected(any).serial); }

void ShmCore::send(Peer& any, std::span<const std::byte> message) {
  if (message.size() > max_message_bytes) {
    throw Error(Code::invalid_argument, fmt::format("a message of {} bytes; at most {} are sent",
                                                    message.size(), max_message_bytes));
  }
  auto& peer = const_cast<ShmPeer&>(connected(any));
  if (peer.ring_is_behind() || !peer.push_now(user_message, message)) {
    throw Error(Code::queue_full, to_string(any.identity()) + " does not take its messages");
  }
}

void ShmCore::attach(Peer& any, std::uint64_t region, OpId id, Deadline deadline) {
  const PeerPtr peer = usable(any);
  const std::uint64_t request = ++last_request_;
  start(id, {Attach{peer, request}, deadline, false, true});
  peer->attaching[request] = {id, {}, {}};
  Encoder encoder;
  encoder.integer(request).integer(region);
  post(peer, packet(PacketKind::attach, encoder.bytes()));
}

void ShmCore::read(Read read, OpId id, Deadline deadline) {
  for (const Source& source : read.sources) {
    if (source.peer != nullptr) usable(*source.peer);
  }
  start(id, {std::make_unique<ShmReading>(std::move(read), bound_reads_, *options_.crew, copiers_),
             deadline});
}

std::int64_t ShmCore::bytes_read(OpId id) const noexcept {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return 0;
  const auto* reading = std::get_if<std::unique_ptr<ShmReading>>(&found->second.work);
  return reading == nullptr ? 0 : (*reading)->bytes_done();
}

Word ShmCore::make_word(Peer& any, std::uint64_t initial) {
  const PeerPtr peer = usable(any);
  if (peer->words_made == words_per_half) {
    throw Error(Code::queue_full, "the connection to " + to_string(any.identity()) +
                                      " has used up its words; connect anew");
  }
  std::atomic<std::uint64_t>& word = peer->conduit->own_word(peer->words_made);
  word.store(initial, std::memory_order_release);
  return {peer->words_made++, &word};
}

std::atomic<std::uint64_t>& ShmCore::word_of(const Peer& any, std::uint32_t word) const {
  if (word >= words_per_half) {
    throw Error(Code::invalid_argument,
                fmt::format("{} has no word {}", to_string(any.identity()), word));
  }
  return connected(any).conduit->peer_word(word);
}

void ShmCore::swap(const Swap& swap, OpId id, Deadline deadline) {
  if (swap.source.peer == nullptr || swap.source.region == nullptr) {
    throw Error(Code::invalid_argument, "a swap without peer or region");
  }
  word_of(*swap.source.peer, swap.word);
  start(id, {swap, deadline});
}

const std::atomic<std::uint64_t>* ShmCore::watch(Peer& any, std::uint32_t word) {
  return &word_of(any, word);
}

void ShmCore::cancel(OpId id) noexcept {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  found->second.cancelled = true;
  found->second.waits = false;
}

void ShmCore::start(OpId id, Operation operation) {
  if (!operations_.emplace(id, std::move(operation)).second) {
    throw Error(Code::invalid_argument, "an operation with this id is running");
  }
}

void ShmCore::finish(OpId id, Status status, std::uint64_t value,
                     std::shared_ptr<const RemoteRegion> region) {
  if (const auto found = operations_.find(id); found != operations_.end()) {
    if (const auto* attaching = std::get_if<Attach>(&found->second.work)) {
      attaching->peer->attaching.erase(attaching->request);
    }
    operations_.erase(found);
  }
  posted_.emplace_back(Completion{id, std::move(status), value, std::move(region)});
}

bool ShmCore::uses(const Operation& operation, const Peer& peer) {
  const auto is_of = [&](const Source& source) { return source.peer.get() == &peer; };
  return std::visit(Overloaded{
                        [&](const Attach& attaching) { return attaching.peer.get() == &peer; },
                        [&](const Swap& swapping) { return is_of(swapping.source); },
                        [&](const std::unique_ptr<ShmReading>& reading) {
                          return std::ranges::any_of(reading->read().sources, is_of);
                        },
                    },
                    operation.work);
}

void ShmCore::end(OpId id, Operation& operation, Status status) {
  if (operation.ended) status = *operation.ended;
  const auto* reading = std::get_if<std::unique_ptr<ShmReading>>(&operation.work);
  if (reading == nullptr || (*reading)->has_ended()) return finish(id, std::move(status));
  operation.ended = std::move(status);
  operation.waits = true;
}

void ShmCore::step(OpId id, Operation& operation) {
  if (operation.ended) return end(id, operation, {});
  if (operation.cancelled) {
    return end(id, operation, {Code::cancelled, "the operation was cancelled"});
  }
  if (operation.deadline.at() <= last_poll_) {
    return end(id, operation, {Code::timeout, "the deadline passed"});
  }
  try {
    std::visit(Overloaded{
                   [](const Attach&) {},  // its answer ends it
                   [&](const Swap& swapping) { step_swap(id, swapping); },
                   [&](const std::unique_ptr<ShmReading>& reading) {
                     const std::int64_t before = reading->bytes_done();
                     const ShmReading::Progress progress =
                         reading->step(last_request_, chunks_per_poll);
                     operation.waits = progress == ShmReading::Progress::waiting;
                     // A slot may have become free that others wait for.
                     if (!operation.waits || reading->bytes_done() > before) stirred_ = true;
                     if (progress == ShmReading::Progress::done) finish(id, {});
                   },
               },
               operation.work);
  } catch (...) {
    end(id, operation, current_exception_status());
  }
}

void ShmCore::step_swap(OpId id, const Swap& swap) {
  const ShmRemoteRegion& region = shm_region(*swap.source.region);
  if (!region.still_open(swap.source.ticket)) {
    return finish(
        id, {Code::withdrawn, to_string(swap.source.peer->identity()) + " took its memory back"});
  }
  std::uint64_t seen = swap.expected;
  word_of(*swap.source.peer, swap.word)
      .compare_exchange_strong(seen, swap.desired, std::memory_order_acq_rel);
  finish(id, {}, seen);
}

void ShmCore::tell_time() {
  const TimePoint now = options_.clock->now();
  polls_per_clock_ =
      now - last_poll_ < clock_is_fresh ? std::min(2 * polls_per_clock_, max_polls_per_clock) : 1;
  next_clock_ = polls_ + polls_per_clock_;
  // A process that was stopped itself cannot say that others were silent.
  if (now - last_poll_ > 2 * pulse_every) {
    for (const auto& [serial, peer] : peers_) peer->last_sign = now;
  }
  last_poll_ = now;
}

std::span<const Event> ShmCore::poll() {
  ++polls_;
  if (armed_ || handshakes_ || peers_changed_ || !operations_.empty() || polls_ == next_clock_) {
    tell_time();
  }
  const TimePoint now = last_poll_;
  stirred_ = false;
  handshakes_ = false;
  if (std::exchange(peers_changed_, false)) {
    polled_.clear();
    for (const auto& [serial, peer] : peers_) polled_.push_back(peer);
  }
  for (const PeerPtr& peer : polled_) {
    if (peer->stage == ShmPeer::Stage::lost) continue;
    if (!peer->up()) {
      handshakes_ = true;
      if (peer->knocks_at <= now) knock(peer);
      if (peer->deadline.at() <= now) {
        lose(peer, {Code::timeout, to_string(peer->identity()) + " did not answer in time"});
      }
      continue;
    }
    if (armed_) peer->conduit->in.awake();
    if (!peer->conduit->in.empty() || peer->ring_is_behind()) take_messages(peer);
  }
  if (now >= shortage_.until() && shortage_.pause_is_over(now))
    watch_descriptor(listener_.get(), 0);
  if (armed_ || handshakes_ || now >= next_look_ || polls_ % polls_per_look == 0) {
    look_at_descriptors();
    next_look_ = now + look_every;
  }
  armed_ = false;
  if (!asks_.empty()) serve_asks();
  if (device_windows_come_) tell_of_device_windows();
  if (!operations_.empty()) step_operations();
  if (now >= next_pulse_) feel_pulses();
  if (!returned_.empty()) reuse_bodies();
  std::swap(returned_, posted_);
  return returned_;
}

void ShmCore::step_operations() {
  std::vector<OpId> ids;
  for (const auto& [id, operation] : operations_) ids.push_back(id);
  for (const OpId id : ids) {
    if (const auto found = operations_.find(id); found != operations_.end()) {
      step(id, found->second);
    }
  }
}

// The bodies of the messages of the last poll, which the caller has read.
void ShmCore::reuse_bodies() noexcept {
  for (Event& event : returned_) {
    auto* message = std::get_if<Message>(&event);
    if (message != nullptr && spare_bodies_.size() < spare_bodies_.capacity()) {
      spare_bodies_.push_back(std::move(message->bytes));
    }
  }
  returned_.clear();
}

void ShmCore::take_messages(const PeerPtr& peer) {
  try {
    peer->flush_ring();
    if (!has_awaited_inlet(peer)) return;
    // A peer that does not take its answers is not asked for more.
    for (int count = 0; count < messages_per_poll && !peer->ring_is_behind(); ++count) {
      if (!peer->up() || peer->conduit->in.empty() || !peer->conduit->in.pop(taken_)) break;
      if (peer->conduit->in.must_wake()) peer->ring_doorbell();
      if (taken_.kind == user_message) {
        hand_over(peer);
      } else if (taken_.kind == ask_message) {
        on_ask(peer, taken_.body);
        return;  // one chunk is packed at a time
      } else if (taken_.kind == packed_message) {
        on_packed(peer, taken_.body);
      } else if (taken_.kind == want_device_window_message) {
        on_want_device_window(peer, taken_.body);
      } else if (taken_.kind == device_window_message) {
        on_device_window(peer, taken_.body);
      } else if (taken_.kind == inlet_message) {
        Decoder decoder(taken_.body);
        peer->awaited_inlet = decoder.integer<std::uint64_t>();
        decoder.end();
        if (!has_awaited_inlet(peer)) return;
      } else {
        throw Error(Code::failed, "it sent a message of unknown kind");
      }
    }
  } catch (...) {
    lose(peer, {Code::peer_lost,
                to_string(peer->identity()) + ": " + current_exception_status().message});
  }
}

// An event that was not yet returned comes first: the event may say that the peer is up.
void ShmCore::hand_over(const PeerPtr& peer) {
  if (receiver_ != nullptr && posted_.empty()) return receiver_->on_message(*peer, taken_.body);
  posted_.emplace_back(Message{peer, std::move(taken_.body)});
  taken_.body.clear();
  if (spare_bodies_.empty()) return;
  taken_.body = std::move(spare_bodies_.back());
  spare_bodies_.pop_back();
}

void ShmCore::look_at_descriptors() {
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, 64, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t tag = events[i].data.u64;
    // The doorbell, and what devices have done: EPOLLET tells each ring once, nothing is left
    // behind.
    if (tag == 1 || tag == device_tag) continue;
    if (tag == 0) {
      accept_some();
    } else if (const auto found = peers_.find(tag / 2); found != peers_.end()) {
      const PeerPtr peer = found->second;
      if (tag % 2 == 1) {
        lose_after_its_last_words(peer, "died");
      } else {
        on_socket(peer);
      }
    }
  }
}

void ShmCore::feel_pulses() {
  next_pulse_ = last_poll_ + pulse_every;
  for (const PeerPtr& peer : polled_) {
    if (!peer->up()) continue;
    take_back_segments(peer);
    peer->conduit->own_pulse().fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t pulse = peer->conduit->peer_pulse().load(std::memory_order_relaxed);
    if (pulse != peer->last_pulse) {
      peer->last_pulse = pulse;
      peer->last_sign = last_poll_;
    } else if (last_poll_ - peer->last_sign > patience_with_the_silent) {
      lose(peer, {Code::peer_lost,
                  to_string(peer->identity()) + " shows no sign of life; it is stopped or stuck"});
    }
  }
}

bool ShmCore::arm() {
  const bool work =
      std::ranges::any_of(operations_, [](const auto& entry) { return !entry.second.waits; });
  if (work || stirred_ || !posted_.empty()) return false;
  armed_ = true;
  for (const auto& [serial, peer] : peers_) {
    if (peer->up() && !peer->conduit->in.sleep()) return false;
  }
  return true;
}

TimePoint ShmCore::wake_at() const noexcept {
  TimePoint earliest = std::min(next_pulse_, shortage_.until());
  for (const auto& [id, operation] : operations_) {
    if (!operation.ended) earliest = std::min(earliest, operation.deadline.at());
  }
  for (const auto& [serial, peer] : peers_) {
    if (!peer->up()) earliest = std::min({earliest, peer->deadline.at(), peer->knocks_at});
    if (peer->peer_device_window.is_opening()) {
      earliest = std::min(earliest, last_poll_ + between_looks_at_windows);
    }
  }
  if (device_windows_come_) earliest = std::min(earliest, last_poll_ + between_looks_at_windows);
  return earliest;
}

std::unique_ptr<Fabric> make_shm_fabric(ShmOptions options) {
  return std::make_unique<ShmCore>(std::move(options));
}

}  // namespace tensorbus::fabric
