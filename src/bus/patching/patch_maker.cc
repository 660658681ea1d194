#include "bus/patching/patch_maker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "delta/patch/patch_writer.h"

namespace tensorbus::bus {
namespace {

std::vector<std::int64_t> elements_of(std::span<const TensorView> tensors) {
  std::vector<std::int64_t> elements;
  for (const TensorView& tensor : tensors) {
    elements.push_back(element_count(Shape(tensor.shape.begin(), tensor.shape.end())));
  }
  return elements;
}

std::vector<const std::byte*> firsts(std::span<const TensorView> tensors) {
  std::vector<const std::byte*> firsts;
  for (const TensorView& tensor : tensors) firsts.push_back(tensor.data);
  return firsts;
}

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

PatchMaker::PatchMaker(Context& context, Origin origin)
    : context_(context),
      origin_(std::move(origin)),
      elements_(elements_of(origin_.tensors)),
      bases_(elements_, SIZE_MAX) {
  for (const std::int64_t each : elements_) all_elements_ += each;
}

void PatchMaker::set(delta::Mode mode, std::optional<std::int64_t> most_bytes) {
  mode_ = mode;
  most_bytes_ = most_bytes ? static_cast<std::size_t>(*most_bytes) : SIZE_MAX;
  bases_.limit(mode == delta::Mode::off ? 0 : most_bytes_);
}

std::int64_t PatchMaker::compares_with() const noexcept {
  if (mode_ == delta::Mode::off || origin_.words.empty() || !bases_.wanted()) return 0;
  if (mode_ == delta::Mode::automatic && !attention_.compares()) return 0;
  return bases_.newest();
}

void PatchMaker::publish(std::int64_t version, bool compared) {
  if (version <= bases_.newest()) return;
  learn_whether_it_paid();
  if (compared) {
    bases_.publish(version, read_words());
  } else {
    bases_.publish_uncompared(version);
    attention_.pass();
  }
  was_compared_ = compared;
  shares_.clear();
}

// Of the version before: nobody knows earlier who asks for a patch to it.
void PatchMaker::learn_whether_it_paid() {
  if (was_compared_ && asked_) attention_.learn(paid_);
  asked_ = paid_ = false;
}

// The worker may have written anything: bits beyond the last element count for nothing.
delta::Changes PatchMaker::read_words() const {
  delta::Changes changes;
  for (std::size_t i = 0; i < elements_.size(); ++i) {
    delta::Bitmap& bitmap = changes.emplace_back(elements_[i]);
    const auto words = bitmap.words();
    if (words.empty()) continue;
    std::memcpy(words.data(), origin_.words[i].data, words.size_bytes());
    const std::int64_t beyond = elements_[i] % delta::Bitmap::word_bits;
    if (beyond != 0) words.back() &= (std::uint64_t{1} << beyond) - 1;
  }
  return changes;
}

void PatchMaker::subscribe(std::uint64_t serial,
                           std::vector<std::shared_ptr<const plan::Stream>> streams) {
  Subscriber& subscriber = subscribers_[serial] = {std::move(streams)};
  for (const auto& stream : subscriber.streams) {
    for (const plan::Part& part : stream->parts) subscriber.elements += part.elements;
  }
  bases_.hold(serial, std::nullopt);
}

std::vector<std::shared_ptr<const plan::Stream>> PatchMaker::streams_of(
    std::uint64_t serial) const {
  const auto found = subscribers_.find(serial);
  if (found == subscribers_.end()) return {};
  return found->second.streams;
}

void PatchMaker::leave(std::uint64_t serial) {
  release(serial);
  subscribers_.erase(serial);
  bases_.leave(serial);
}

void PatchMaker::release(std::uint64_t serial) {
  for (Patch& patch : patches_) patch.users.erase(serial);
  std::erase_if(patches_, [](const Patch& patch) { return patch.users.empty(); });
}

Patched PatchMaker::answer(std::uint64_t serial, const AskPatch& ask,
                           std::span<const TensorView> tensors) {
  Patched answer{ask.version, delta::Why::switched_off, {}};
  const auto found = subscribers_.find(serial);
  if (found == subscribers_.end()) return answer;
  release(serial);
  bases_.hold(serial, ask.held == 0 ? std::nullopt : std::optional(ask.held));
  bases_.expect(serial, ask.version);
  asked_ = true;
  answer.why = offer(serial, found->second, ask, tensors, answer.patches);
  found->second.last = answer.why;
  if (answer.why == delta::Why::patch) {
    paid_ = true;
    context_.at(Step::patch_offered);
  } else {
    answer.patches.clear();
    release(serial);
  }
  return answer;
}

delta::Why PatchMaker::offer(std::uint64_t serial, Subscriber& subscriber, const AskPatch& ask,
                             std::span<const TensorView> tensors,
                             std::vector<OfferedPatch>& offered) {
  using delta::Why;
  if (mode_ == delta::Mode::off) return Why::switched_off;
  const bool possible = std::ranges::all_of(
      subscriber.streams, [](const auto& each) { return BoundStream::has_patches(*each); });
  if (!possible) return Why::no_patches;
  const auto since = bases_.since(ask.held);
  if (ask.held == 0 || tensors.empty() || ask.version < ask.held || !since) return Why::no_base;
  // First from what is known without looking at the streams, which takes some time.
  delta::Offered all = expected(subscriber, *since);
  if (const Why why = decide(subscriber, all, ask); why != Why::patch) return why;
  bind(subscriber);
  std::vector<std::unique_ptr<delta::PatchWriter>> writers;
  const TimePoint begun = context_.measured();
  std::int64_t values = 0;
  all.patch_bytes = 0;
  for (const auto& stream : subscriber.bound) {
    const delta::PatchWriter& writer = *writers.emplace_back(
        std::make_unique<delta::PatchWriter>(stream->packed(), *since->changes));
    all.patch_bytes += static_cast<std::int64_t>(writer.bytes());
    values += writer.values();
  }
  all.changed_share = subscriber.elements == 0
                          ? 0
                          : static_cast<double>(values) / static_cast<double>(subscriber.elements);
  if (const Why why = decide(subscriber, all, ask); why != Why::patch) return why;
  bool made = false;
  for (std::size_t at = 0; at < writers.size(); ++at) {
    const delta::PatchId id{origin_.generation, since->base, ask.version,
                            subscriber.bound[at]->fingerprint()};
    Patch* patch = find(id, *subscriber.bound[at]);
    if (patch == nullptr) {
      if (!has_room(writers[at]->bytes())) return Why::no_room;
      patch = &make(id, subscriber.bound[at], *writers[at], tensors);
      made = true;
    }
    patch->users.insert(serial);
    offered.push_back({patch->region->number(), static_cast<std::int64_t>(patch->bytes.size()),
                       id.base, patch->checksum});
  }
  if (made) learn_packing(all, context_.measured() - begun);
  return Why::patch;
}

// As if changes were spread evenly over all that there is.
delta::Offered PatchMaker::expected(const Subscriber& subscriber,
                                    const delta::Bases::Since& since) {
  const auto [share, fresh] = shares_.try_emplace(since.base, 0.0);
  if (fresh && all_elements_ > 0) {
    share->second = static_cast<double>(delta::estimated_count(*since.changes)) /
                    static_cast<double>(all_elements_);
  }
  delta::Offered all;
  for (const auto& stream : subscriber.streams) all.dense_bytes += stream->payload_bytes;
  all.changed_share = share->second;
  // A value and about a byte that says where it goes.
  all.patch_bytes = static_cast<std::int64_t>(
      share->second * static_cast<double>(all.dense_bytes + subscriber.elements));
  return all;
}

delta::Why PatchMaker::decide(const Subscriber& subscriber, const delta::Offered& all,
                              const AskPatch& ask) const {
  delta::Speeds speeds;
  speeds.dense = static_cast<double>(ask.dense) / 1000;
  speeds.apply = static_cast<double>(ask.apply) / 1000;
  speeds.pack = packing_.value_or(1);
  if (ask.rate > 0) speeds.link_rate = static_cast<double>(ask.rate);
  return delta::decide(mode_, all, speeds, subscriber.last);
}

void PatchMaker::learn_packing(const delta::Offered& all, Duration took) {
  const double expected = delta::pack_cost(all.changed_share) *
                          static_cast<double>(all.dense_bytes) *
                          delta::Speeds().copy_seconds_per_byte;
  if (context_.clock == nullptr || expected <= 0) return;
  packing_ = delta::learnt(packing_, seconds(took) / expected);
}

void PatchMaker::bind(Subscriber& subscriber) {
  if (!subscriber.bound.empty()) return;
  for (const auto& stream : subscriber.streams) subscriber.bound.push_back(bound(stream));
}

std::shared_ptr<const BoundStream> PatchMaker::bound(
    const std::shared_ptr<const plan::Stream>& stream) {
  std::erase_if(streams_, [](const auto& each) { return each.expired(); });
  for (const auto& each : streams_) {
    const auto known = each.lock();
    if (known->carries_the_same(*stream)) return known;
  }
  auto made = std::make_shared<const BoundStream>(stream, plan::BoundSide::source, origin_.tensors);
  streams_.push_back(made);
  return made;
}

PatchMaker::Patch* PatchMaker::find(const delta::PatchId& id, const BoundStream& stream) {
  const auto found = std::ranges::find_if(patches_, [&](const Patch& patch) {
    return patch.id == id && patch.stream->carries_the_same(stream.stream());
  });
  return found == patches_.end() ? nullptr : &*found;
}

bool PatchMaker::has_room(std::size_t more) const noexcept {
  const std::size_t used = bytes();
  return used <= most_bytes_ && more <= most_bytes_ - used;
}

PatchMaker::Patch& PatchMaker::make(const delta::PatchId& id,
                                    const std::shared_ptr<const BoundStream>& stream,
                                    const delta::PatchWriter& writer,
                                    std::span<const TensorView> tensors) {
  Patch& patch = patches_.emplace_back();
  patch.id = id;
  patch.stream = stream;
  patch.bytes.resize(writer.bytes());
  writer.write(id, firsts(tensors), patch.bytes);
  patch.checksum = delta::checksum_of(patch.bytes);
  patch.shape = {std::ssize(patch.bytes)};
  const TensorView view{patch.bytes.data(), Dtype::uint8, patch.shape, patch.strides};
  patch.region = context_.fabric.expose({&view, 1});
  log::debug("bus: rank {}: a patch from version {} to version {} has {} bytes and {} values",
             context_.rank, id.base, id.version, patch.bytes.size(), writer.values());
  return patch;
}

std::size_t PatchMaker::bytes() const noexcept {
  std::size_t sum = bases_.bytes();
  for (const Patch& patch : patches_) sum += patch.bytes.size();
  return sum;
}

}  // namespace tensorbus::bus
