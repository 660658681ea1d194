#include "fabric/ucx/client.h"

#include <fmt/format.h>

#include <algorithm>

#include "copy/execute.h"
#include "fabric/read/fragments.h"
#include "fabric/read/reading.h"

namespace tensorbus::fabric::ucx {
namespace {

// A region of millions of tensors; more is a peer that never stops.
constexpr std::size_t max_forms_bytes = std::size_t{256} << 20;
// Credits go back in steps of this share of the window: often enough to keep a source busy, rarely
// enough to cost nothing.
constexpr std::int64_t credits_per_window = 8;

std::shared_ptr<Connection> connection_of(const std::shared_ptr<Peer>& peer) {
  auto connection = std::dynamic_pointer_cast<Connection>(peer);
  if (connection == nullptr) {
    throw Error(Code::invalid_argument, "a peer of another fabric was given to the network's");
  }
  if (!connection->up()) {
    throw Error(Code::peer_lost,
                fmt::format("there is no connection to {}: {}", connection->description(),
                            connection->lost() ? connection->lost()->message : "it is not up yet"));
  }
  return connection;
}

const AttachedRegion& region_of(const Source& source, const Connection& peer) {
  const auto* region = dynamic_cast<const AttachedRegion*>(source.region.get());
  if (region == nullptr || region->stream() != peer.stream()) {
    throw Error(Code::invalid_argument,
                fmt::format("the region was not attached through this connection to {}",
                            peer.description()));
  }
  return *region;
}

const Read& checked(const Read& read) {
  check(read);
  return read;
}

}  // namespace

CutRead::CutRead(const Read& read) : forms_(checked(read)) {
  const plan::Strides strides = strides_of(forms_.targets());
  program_ = cut(plan::compile(*read.stream, nullptr, &strides), max_body_bytes);
}

Client::Operation& Client::start(OpId id, Deadline deadline, std::string what) {
  const auto [entry, added] = operations_.try_emplace(id);
  if (!added) {
    throw Error(Code::invalid_argument,
                fmt::format("operation {} is still running", static_cast<std::uint64_t>(id)));
  }
  Operation& operation = entry->second;
  operation.id = id;
  operation.deadline = deadline;
  operation.what = std::move(what);
  if (!deadline.is_never()) deadlines_.emplace(deadline.at(), id);
  return operation;
}

void Client::add_leg(Operation& operation, std::shared_ptr<Connection> peer) {
  legs_.emplace(++last_number_, LegKey{operation.id, operation.legs.size()});
  Leg leg;
  leg.peer = std::move(peer);
  leg.number = last_number_;
  operation.legs.push_back(std::move(leg));
}

void Client::attach(std::shared_ptr<Connection> peer, std::uint64_t region, OpId id,
                    Deadline deadline) {
  connection_of(peer);
  Operation& operation =
      start(id, deadline, fmt::format("attach of region {} of {}", region, peer->description()));
  operation.region = region;
  add_leg(operation, std::move(peer));
  operation.legs.front().peer->send(Kind::attach, last_number_, region);
}

void Client::read(Read read, OpId id, Deadline deadline) {
  std::shared_ptr<CutRead> cut =
      cut_reads_.get([&] { return std::make_shared<CutRead>(read); }, read);
  std::vector<std::shared_ptr<Connection>> peers;
  std::vector<std::string> asks;
  std::string names;
  for (const Source& source : read.sources) {
    peers.push_back(connection_of(source.peer));
    const AttachedRegion& region = region_of(source, *peers.back());
    asks.push_back(encode(Ask{region.number(), read.stream_number, source.ticket,
                              read.stream->wire_bytes, read.stream->chunk_bytes, window_}));
    names += (names.empty() ? "" : ", ") + peers.back()->description();
  }
  const TensorMemory memory = memory_of(read.targets, read.lender, &copiers_);
  Operation& operation = start(id, deadline, "read from " + names);
  operation.on_device = memory.on_device();
  if (operation.on_device) on_device_.insert(id);
  operation.targets.emplace(cut->program(), memory);
  operation.bypass_caches = !operation.targets->staged() &&
                            copy::caches_for(read.stream->wire_bytes) == copy::Caches::bypass;
  operation.read = std::move(read);
  operation.cut = std::move(cut);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    add_leg(operation, peers[i]);
    peers[i]->send(Kind::ask, last_number_, 0, asks[i]);
  }
}

void Client::swap(const Swap& swap, OpId id, Deadline deadline) {
  const std::shared_ptr<Connection> peer = connection_of(swap.source.peer);
  const AttachedRegion& region = region_of(swap.source, *peer);
  Operation& operation =
      start(id, deadline, fmt::format("swap of word {} of {}", swap.word, peer->description()));
  add_leg(operation, peer);
  peer->send(Kind::swap, last_number_, 0,
             encode(SwapRequest{region.number(), swap.source.ticket, swap.word, swap.expected,
                                swap.desired}));
}

std::int64_t Client::bytes_read(OpId id) const noexcept {
  const auto found = operations_.find(id);
  return found == operations_.end() ? 0 : found->second.bytes_stored;
}

void Client::cancel(OpId id) {
  const auto found = operations_.find(id);
  if (found == operations_.end() || found->second.ended) return;
  fail(found->second, {Code::cancelled, found->second.what + " was cancelled"});
}

std::pair<Client::Operation*, Client::Leg*> Client::find(Connection& peer, std::uint64_t number) {
  const auto key = legs_.find(number);
  if (key == legs_.end()) {
    if (number == 0 || number > last_number_) {
      peer.lose_for(fmt::format("answered request {}, which was never made", number));
    }
    return {};
  }
  Operation& operation = operations_.at(key->second.id);
  Leg& leg = operation.legs[key->second.leg];
  if (leg.peer.get() != &peer) {
    peer.lose_for(
        fmt::format("answered request {}, which went to {}", number, leg.peer->description()));
    return {};
  }
  return {&operation, &leg};
}

void Client::forms(Connection& peer, const Frame& frame, std::string_view body) {
  const auto [operation, leg] = find(peer, frame.number);
  if (operation == nullptr) return;
  if (operation->region == 0) throw Error(Code::failed, "forms for what is no attach");
  if (operation->encoded_forms.size() + body.size() > max_forms_bytes) {
    throw Error(Code::failed, "forms without end");
  }
  operation->encoded_forms += body;
  if (frame.index != 0) return;
  Completion completion{operation->id, {}, 0, nullptr};
  completion.region = std::make_shared<AttachedRegion>(peer.stream(), operation->region,
                                                       decode_forms(operation->encoded_forms));
  complete(*operation, std::move(completion));
}

void Client::failed(Connection& peer, const Frame& frame, std::string_view body) {
  const Status status = decode_status(body);
  if (status.ok()) throw Error(Code::failed, "a failure without an error");
  const auto [operation, leg] = find(peer, frame.number);
  if (operation == nullptr) return;
  fail(*operation, {status.code, operation->what + ": " + status.message});
}

void Client::fragment(Connection& peer, const Frame& frame, std::span<const std::byte> body) {
  const auto [operation, leg] = find(peer, frame.number);
  if (operation == nullptr) return;
  if (!operation->targets) throw Error(Code::failed, "a fragment for what is no read");
  const plan::Program& program = operation->targets->program();
  const auto& chunks = program.chunks;
  if (frame.index != leg->next || leg->next >= chunks.size() ||
      body.size() != static_cast<std::size_t>(chunks[leg->next].wire_bytes)) {
    throw Error(Code::failed, fmt::format("fragment {} of {} bytes, where fragment {} was due",
                                          frame.index, body.size(), leg->next));
  }
  const std::size_t index = leg->next++;
  try {
    if (program.source.reduces() || operation->on_device) {
      leg->held.emplace_back(body.begin(), body.end());
      reduce_what_is_complete(*operation);
      return;
    }
    copy::scatter_chunk(program, chunks[index], body, operation->targets->tensors(),
                        operation->bypass_caches ? copy::Caches::bypass : copy::Caches::keep);
    operation->targets->store(index);
    operation->bytes_stored += chunks[index].wire_bytes;
  } catch (const Error& error) {
    fail(*operation, {error.code(), operation->what + ": " + error.what()});
    return;
  }
  consumed(*operation, *leg, chunks[index].wire_bytes);
}

// A source that is ahead gets no credits for what is held here, so at most its window is held.
void Client::reduce_what_is_complete(Operation& operation) {
  while (std::ranges::none_of(operation.legs, [](const Leg& leg) { return leg.held.empty(); })) {
    if (!operation.targets->ready(operation.reduced)) return;
    const std::size_t index = operation.reduced++;
    const plan::Program& program = operation.targets->program();
    const plan::Chunk& chunk = program.chunks[index];
    std::vector<std::span<const std::byte>> wires;
    for (const Leg& leg : operation.legs) wires.emplace_back(leg.held.front());
    if (program.source.reduces()) {
      copy::reduce_packed_chunk(program, chunk, wires, operation.targets->tensors());
    } else {
      copy::scatter_chunk(program, chunk, wires.front(), operation.targets->tensors());
    }
    operation.targets->store(index);
    operation.bytes_stored += chunk.wire_bytes;
    for (Leg& leg : operation.legs) {
      leg.held.pop_front();
      consumed(operation, leg, chunk.wire_bytes);
    }
  }
  complete_if_read(operation);
}

void Client::consumed(Operation& operation, Leg& leg, std::int64_t bytes) {
  leg.uncredited += bytes;
  if (leg.uncredited < static_cast<std::int64_t>(window_) / credits_per_window) return;
  if (leg.next == operation.cut->program().chunks.size()) return;
  leg.peer->send(Kind::credit, leg.number, static_cast<std::uint64_t>(leg.uncredited));
  leg.uncredited = 0;
}

void Client::served(Connection& peer, const Frame& frame, std::string_view body) {
  const Status status = decode_status(body);
  const auto [operation, leg] = find(peer, frame.number);
  if (operation == nullptr) return;
  if (!status.ok()) {
    fail(*operation, {status.code, fmt::format("{}: {}: {}", operation->what, peer.description(),
                                               status.message)});
    return;
  }
  if (leg->served || operation->read.stream == nullptr ||
      leg->next != operation->cut->program().chunks.size()) {
    throw Error(Code::failed, "the end of a read that is not over");
  }
  leg->served = true;
  go_on_or_fail(*operation);
}

void Client::complete_if_read(Operation& operation) {
  const bool all = std::ranges::all_of(
      operation.legs, [](const Leg& leg) { return leg.served && leg.held.empty(); });
  if (all && operation.targets->finished()) complete(operation, {operation.id, {}, 0, nullptr});
}

void Client::look_at_devices() {
  const std::set<OpId> ids = on_device_;
  for (const OpId id : ids) {
    Operation& operation = operations_.at(id);
    if (!operation.ended) {
      go_on_or_fail(operation);
    } else if (operation.targets->ended()) {
      complete(operation, {operation.id, *operation.ended, 0, nullptr});
    }
  }
}

void Client::go_on_or_fail(Operation& operation) {
  try {
    reduce_what_is_complete(operation);
  } catch (const Error& error) {
    fail(operation, {error.code(), operation.what + ": " + error.what()});
  }
}

void Client::swapped(Connection& peer, const Frame& frame, std::string_view body) {
  const Status status = decode_status(body);
  const auto [operation, leg] = find(peer, frame.number);
  if (operation == nullptr) return;
  if (operation->read.stream != nullptr || operation->region != 0) {
    throw Error(Code::failed, "an answer to a swap for what is none");
  }
  Status outcome = status;
  if (!status.ok()) outcome.message = operation->what + ": " + status.message;
  complete(*operation, {operation->id, std::move(outcome), frame.index, nullptr});
}

void Client::complete(Operation& operation, Completion completion) {
  for (const Leg& leg : operation.legs) legs_.erase(leg.number);
  deadlines_.erase({operation.deadline.at(), operation.id});
  on_device_.erase(operation.id);
  completions_.push_back(std::move(completion));
  operations_.erase(operation.id);
}

void Client::fail(Operation& operation, const Status& reason) {
  if (operation.read.stream != nullptr) {
    for (const Leg& leg : operation.legs) {
      if (!leg.served && leg.peer->up()) leg.peer->send(Kind::cancel_read, leg.number);
    }
  }
  if (operation.on_device && !operation.targets->ended()) {
    // What still comes is dropped.
    for (const Leg& leg : operation.legs) legs_.erase(leg.number);
    deadlines_.erase({operation.deadline.at(), operation.id});
    operation.ended = reason;
    return;
  }
  complete(operation, {operation.id, reason, 0, nullptr});
}

void Client::expire(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Operation& operation = operations_.at(deadlines_.begin()->second);
    fail(operation, {Code::timeout, operation.what + " did not end in time"});
  }
}

TimePoint Client::next_deadline() const noexcept {
  return deadlines_.empty() ? TimePoint::max() : deadlines_.begin()->first;
}

void Client::forget(const Connection& peer, const Status& reason) {
  std::vector<OpId> over;
  for (const auto& [id, operation] : operations_) {
    const bool uses = std::ranges::any_of(operation.legs,
                                          [&](const Leg& leg) { return leg.peer.get() == &peer; });
    if (uses && !operation.ended) over.push_back(id);
  }
  for (const OpId id : over) {
    Operation& operation = operations_.at(id);
    fail(operation, {reason.code, operation.what + ": " + reason.message});
  }
}

}  // namespace tensorbus::fabric::ucx
