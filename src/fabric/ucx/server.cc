#include "fabric/ucx/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "copy/execute.h"
#include "fabric/read/fragments.h"

namespace tensorbus::fabric::ucx {
namespace {

constexpr std::size_t max_reads_per_peer = 4096;
constexpr std::size_t max_words_per_peer = 65'536;
constexpr std::uint64_t max_window = std::uint64_t{1} << 32;
// Sends that UCX has not passed on to the kernel. Few, so that the same buffers stay in the caches.
constexpr std::size_t max_sends_under_way = 8;
// Fragments of one read before the next has its turn.
constexpr std::size_t fragments_per_turn = 8;

std::shared_ptr<ServedStream> bind(const plan::Stream& stream, const Exposure& exposure) {
  check_source(stream, exposure.forms);
  const plan::Strides strides = strides_of(exposure.forms);
  return std::make_shared<ServedStream>(ServedStream{
      stream.wire_bytes, stream.chunk_bytes,
      Packer(cut(plan::compile(stream, &strides, nullptr), max_body_bytes), exposure.memory)});
}

class OwnedRegion final : public Region {
 public:
  explicit OwnedRegion(std::shared_ptr<Exposure> exposure) : exposure_(std::move(exposure)) {}
  ~OwnedRegion() override {
    exposure_->dropped = true;
    exposure_->streams.clear();
    // The owner may free the memory now: no device is at it.
    for (const auto& each : exposure_->on_device) {
      if (const auto stream = each.lock()) stream->packer.settle();
    }
    exposure_->memory = {};
  }

  std::uint64_t number() const noexcept override { return exposure_->number; }
  const Forms& forms() const noexcept override { return exposure_->forms; }
  Gate& gate() noexcept override { return exposure_->gate; }
  void serve(std::uint64_t number, plan::Stream stream) override {
    if (number == 0) {
      throw Error(Code::invalid_argument, "stream 0 is the whole region and always served");
    }
    if (exposure_->memory.on_device()) {
      check_source(stream, exposure_->forms);
      exposure_->unbound.insert_or_assign(number, std::move(stream));
    } else {
      exposure_->streams.insert_or_assign(number, bind(stream, *exposure_));
    }
  }

 private:
  std::shared_ptr<Exposure> exposure_;
};

plan::Stream all_of(const Forms& forms) {
  std::vector<Dtype> types;
  for (const TensorForm& form : forms) types.push_back(form.dtype);
  return whole_stream(forms, types);
}

const plan::Stream* find_unbound(Exposure& exposure, std::uint64_t number) {
  if (number == 0) exposure.unbound.try_emplace(0, all_of(exposure.forms));
  const auto found = exposure.unbound.find(number);
  return found == exposure.unbound.end() ? nullptr : &found->second;
}

Status withdrawn(std::uint64_t region) {
  return {Code::withdrawn, fmt::format("region {} was taken back by its owner", region)};
}

}  // namespace

std::shared_ptr<ServedStream> Exposure::stream(std::uint64_t stream_number) {
  if (memory.on_device()) {
    const plan::Stream* const own = find_unbound(*this, stream_number);
    if (own == nullptr) return nullptr;
    std::shared_ptr<ServedStream> bound = bind(*own, *this);
    std::erase_if(on_device, [](const auto& each) { return each.expired(); });
    on_device.push_back(bound);
    return bound;
  }
  const auto found = streams.find(stream_number);
  if (found != streams.end()) return found->second;
  if (stream_number != 0) return nullptr;
  return streams.emplace(0, bind(all_of(forms), *this)).first->second;
}

std::unique_ptr<Region> Server::expose(std::span<const TensorView> tensors, Gate gate,
                                       std::shared_ptr<const Lender> lender) {
  auto exposure =
      std::make_shared<Exposure>(Exposure{last_region_ + 1,
                                          {},
                                          std::move(gate),
                                          memory_of(tensors, std::move(lender), &copiers_),
                                          {},
                                          false});
  for (const TensorView& tensor : tensors) {
    exposure->forms.push_back(form_of(tensor));
    static_cast<void>(extent_of(exposure->forms.back()));  // refuses what no tensor can have
  }
  std::erase_if(regions_, [](const auto& entry) { return entry.second.expired(); });
  regions_.emplace(++last_region_, exposure);
  return std::make_unique<OwnedRegion>(std::move(exposure));
}

std::shared_ptr<Exposure> Server::find(std::uint64_t region) {
  const auto found = regions_.find(region);
  if (found == regions_.end()) return nullptr;
  std::shared_ptr<Exposure> exposure = found->second.lock();
  return exposure != nullptr && !exposure->dropped ? exposure : nullptr;
}

Word Server::make_word(Connection& peer, std::uint64_t initial) {
  auto& words = peer.words();
  if (words.size() >= max_words_per_peer) {
    throw Error(Code::queue_full, fmt::format("the connection to {} has used up its {} words",
                                              peer.description(), max_words_per_peer));
  }
  words.emplace_back(initial);
  return {static_cast<std::uint32_t>(words.size() - 1), &words.back()};
}

void Server::attach(Connection& peer, std::uint64_t request, std::uint64_t region) {
  const std::shared_ptr<Exposure> exposure = find(region);
  if (exposure == nullptr) {
    const bool once = region != 0 && region <= last_region_;
    peer.send(Kind::failed, request, 0,
              encode(once ? withdrawn(region)
                          : Status{Code::invalid_argument,
                                   fmt::format("there is no region {}", region)}));
    return;
  }
  const std::string forms = fabric::encode(exposure->forms);
  for (std::size_t at = 0; at < forms.size(); at += max_body_bytes) {
    const bool more = forms.size() - at > max_body_bytes;
    peer.send(Kind::forms, request, more ? 1 : 0,
              std::string_view(forms).substr(at, max_body_bytes));
  }
}

void Server::ask(const std::shared_ptr<Connection>& peer, std::uint64_t read, const Ask& ask) {
  const auto refuse = [&](const Status& status) {
    peer->send(Kind::served, read, 0, encode(status));
  };
  const ReadKey key{peer->stream(), read};
  if (servings_.contains(key)) {
    peer->lose_for(fmt::format("used read {} twice", read));
    return;
  }
  const auto first = servings_.lower_bound({peer->stream(), 0});
  const auto end = servings_.upper_bound({peer->stream(), UINT64_MAX});
  if (static_cast<std::size_t>(std::distance(first, end)) >= max_reads_per_peer) {
    refuse({Code::queue_full, fmt::format("{} reads run already", max_reads_per_peer)});
    return;
  }
  std::shared_ptr<Exposure> exposure = find(ask.region);
  if (exposure == nullptr || !exposure->gate.open(ask.ticket)) {
    refuse(withdrawn(ask.region));
    return;
  }
  std::shared_ptr<ServedStream> stream = exposure->stream(ask.stream_number);
  if (stream == nullptr) {
    refuse({Code::invalid_argument,
            fmt::format("region {} does not serve a stream {}", ask.region, ask.stream_number)});
    return;
  }
  if (stream->wire_bytes != ask.wire_bytes || stream->chunk_bytes != ask.chunk_bytes) {
    refuse({Code::invalid_argument,
            fmt::format("stream {} of region {} has {} bytes in chunks of {}, its reader computed "
                        "{} in chunks of {}; the layouts differ",
                        ask.stream_number, ask.region, stream->wire_bytes, stream->chunk_bytes,
                        ask.wire_bytes, ask.chunk_bytes)});
    return;
  }
  servings_.emplace(key, Serving{peer, std::move(exposure), std::move(stream), ask.ticket, 0,
                                 std::min(ask.window, max_window)});
}

void Server::credit(Connection& peer, std::uint64_t read, std::uint64_t bytes) {
  const auto found = servings_.find({peer.stream(), read});
  if (found == servings_.end()) return;  // it was over before this came
  Serving& serving = found->second;
  serving.window = std::min(serving.window + std::min(bytes, max_window), max_window);
}

void Server::cancel(const Connection& peer, std::uint64_t read) {
  servings_.erase({peer.stream(), read});
}

void Server::swap(Connection& peer, std::uint64_t request, const SwapRequest& swap) {
  const auto answer = [&](std::uint64_t value, const Status& status) {
    peer.send(Kind::swapped, request, value, encode(status));
  };
  if (swap.word >= peer.words().size()) {
    answer(0, {Code::invalid_argument, fmt::format("there is no word {}", swap.word)});
    return;
  }
  std::atomic<std::uint64_t>& word = peer.words()[swap.word];
  const std::shared_ptr<Exposure> exposure = find(swap.region);
  if (exposure == nullptr || !exposure->gate.still_open(swap.ticket)) {
    answer(word.load(std::memory_order_acquire), withdrawn(swap.region));
    return;
  }
  std::uint64_t seen = swap.expected;
  word.compare_exchange_strong(seen, swap.desired, std::memory_order_acq_rel);
  answer(seen, {});
}

bool Server::ready(Serving& serving) noexcept {
  if (serving.peer->lost() || serving.peer->sends_under_way() >= max_sends_under_way) return false;
  const Packer& packer = serving.stream->packer;
  const auto& chunks = packer.program().chunks;
  if (serving.next == chunks.size()) return true;
  if (packer.on_device() && !look_ahead(serving)) return false;
  return serving.window >= static_cast<std::uint64_t>(chunks[serving.next].wire_bytes);
}

bool Server::look_ahead(Serving& serving) noexcept {
  if (serving.exposure->dropped || !serving.failure.ok()) return true;
  Packer& packer = serving.stream->packer;
  const std::size_t end = std::min(packer.program().chunks.size(), serving.next + packer.slots());
  try {
    for (; serving.begun < end; ++serving.begun) packer.begin(serving.begun);
    return packer.ready(serving.next);
  } catch (...) {
    serving.failure = current_exception_status();
    return true;
  }
}

bool Server::step(std::uint64_t read, Serving& serving) {
  const Exposure& exposure = *serving.exposure;
  const auto& chunks = serving.stream->packer.program().chunks;
  // Before each fragment, so that a withdrawn read does not go on; after the last fragment, so that
  // what was sent before is known to be whole.
  if (exposure.dropped || !exposure.gate.still_open(serving.ticket)) {
    serving.peer->send(Kind::served, read, 0, encode(withdrawn(exposure.number)));
    return true;
  }
  if (serving.next == chunks.size()) {
    serving.peer->send(Kind::served, read, 0, encode(Status{}));
    return true;
  }
  const plan::Chunk& chunk = chunks[serving.next];
  std::unique_ptr<Outgoing> message = serving.peer->outgoing();
  try {
    if (!serving.failure.ok()) throw Error(serving.failure);
    Packer& packer = serving.stream->packer;
    if (packer.on_device()) {
      packer.pack(serving.next, message->room());
    } else {
      packer.gather(serving.next, message->room());
    }
  } catch (const Error& error) {
    const bool open = exposure.gate.still_open(serving.ticket);
    serving.peer->send(Kind::served, read, 0,
                       encode(open ? error.status() : withdrawn(exposure.number)));
    return true;
  }
  message->bytes = static_cast<std::size_t>(chunk.wire_bytes);
  serving.window -= message->bytes;
  serving.peer->send(Kind::fragment, read, serving.next++, std::move(message));
  return false;
}

std::uint64_t Server::open_inlet(const Connection& peer, std::span<std::byte> memory) {
  Inlets& inlets = inlets_[peer.stream()];
  inlets.open.emplace(++inlets.last, memory);
  return inlets.last;
}

void Server::close_inlet(const Connection& peer, std::uint64_t inlet) {
  inlets_[peer.stream()].open.erase(inlet);
}

void Server::write(const Connection& peer, std::uint64_t inlet, std::uint64_t offset,
                   std::span<const std::byte> bytes) {
  Inlets& inlets = inlets_[peer.stream()];
  if (inlet == 0 || inlet > inlets.last) throw Error(Code::failed, "a write without an inlet");
  const auto found = inlets.open.find(inlet);
  if (found == inlets.open.end()) return;  // closed
  const std::span<std::byte> memory = found->second;
  if (offset > memory.size() || bytes.size() > memory.size() - offset) {
    throw Error(Code::failed, "a write that leads outside of its inlet");
  }
  if (!bytes.empty()) std::memcpy(memory.data() + offset, bytes.data(), bytes.size());
}

bool Server::pump(std::size_t budget) {
  std::size_t spent = 0;
  bool more = false;
  auto at = servings_.lower_bound(turn_);
  for (std::size_t left = servings_.size(); left > 0; --left) {
    if (at == servings_.end()) at = servings_.begin();
    bool over = false;
    for (std::size_t i = 0; i < fragments_per_turn && !over && ready(at->second); ++i) {
      const std::size_t next = at->second.next;
      const auto& chunks = at->second.stream->packer.program().chunks;
      if (next < chunks.size()) spent += static_cast<std::size_t>(chunks[next].wire_bytes);
      over = step(at->first.second, at->second);
    }
    if (over) {
      at = servings_.erase(at);
    } else {
      more = more || ready(at->second);
      ++at;
    }
    if (spent >= budget) {
      more = more || !servings_.empty();
      break;
    }
  }
  turn_ = at == servings_.end() ? ReadKey{} : at->first;
  return more;
}

bool Server::waits_for_device() const noexcept {
  return std::ranges::any_of(servings_, [](const auto& entry) {
    const Packer& packer = entry.second.stream->packer;
    return packer.on_device() && entry.second.next < packer.program().chunks.size();
  });
}

void Server::forget(const Connection& peer) {
  servings_.erase(servings_.lower_bound({peer.stream(), 0}),
                  servings_.upper_bound({peer.stream(), UINT64_MAX}));
  inlets_.erase(peer.stream());
}

}  // namespace tensorbus::fabric::ucx
