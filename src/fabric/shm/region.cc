#include "fabric/shm/region.h"

#include <algorithm>

#include "base/bytes.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr std::uint64_t nowhere = 0;  // segments count from 1
constexpr std::uint64_t no_address = 0;

Place word_place(const Pool& pool, const std::atomic<std::uint64_t>& word) {
  const auto place = pool.find(&word, sizeof word);
  if (!place) {
    throw Error(Code::invalid_argument,
                "a gate that peers cannot see: use the fabric's make_gate()");
  }
  return *place;
}

void write(Encoder& encoder, const Place& place) {
  encoder.integer(place.segment).integer(place.offset);
}

// `extent` counts from the place.
std::shared_ptr<const ShmSegment> locate(const Segments& segments, const Place& place,
                                         Extent extent) {
  const auto found = segments.find(place.segment);
  if (found == segments.end()) throw Error(Code::failed, "a region names memory that was not sent");
  const auto size = static_cast<std::uint64_t>(found->second->size());
  const auto before = static_cast<std::uint64_t>(-extent.begin);
  const auto after = static_cast<std::uint64_t>(extent.end);
  if (place.offset > size || before > place.offset || after > size - place.offset) {
    throw Error(Code::failed, "a region leads outside of its memory");
  }
  return found->second;
}

const std::atomic<std::uint64_t>* locate_word(const Segments& segments, const Place& place,
                                              std::shared_ptr<const ShmSegment>& held) {
  held = locate(segments, place, {0, 8});
  if (place.offset % 8 != 0) throw Error(Code::failed, "a word of a region is not aligned");
  return reinterpret_cast<const std::atomic<std::uint64_t>*>(held->data() + place.offset);
}

Place read_place(Decoder& decoder) {
  Place place;
  place.segment = decoder.integer<std::uint64_t>();
  place.offset = decoder.integer<std::uint64_t>();
  return place;
}

Probe read_probe(Decoder& decoder) {
  Probe probe;
  probe.address = decoder.integer<std::uint64_t>();
  std::ranges::copy(decoder.raw(probe.value.size()), probe.value.begin());
  return probe;
}

}  // namespace

ShmSegment::ShmSegment(os::Fd file, std::size_t size, bool keep_file)
    : file_(std::move(file)), size_(size) {
  if (keep_file) return;
  data();
  file_.reset();
}

const std::byte* ShmSegment::data() const {
  if (!memory_) memory_ = os::map(file_, size_, false, false);
  return memory_.data();
}

const std::byte* ShmSegment::data(std::size_t begin, std::size_t end) const {
  data();
  os::populate(memory_, begin, end);
  return memory_.data();
}

os::Mapping ShmSegment::alias(std::size_t begin, std::size_t end) const {
  return os::map_privately(file_, begin, end - begin);
}

plan::Program ShmExposed::compiled(std::uint64_t stream) const {
  const plan::Strides strides = strides_of(forms);
  if (stream == 0) {
    std::vector<Dtype> types;
    for (const TensorForm& form : forms) types.push_back(form.dtype);
    return plan::compile(whole_stream(forms, types), &strides, nullptr);
  }
  const auto found = streams.find(stream);
  if (found == streams.end()) {
    throw Error(Code::invalid_argument,
                "region " + std::to_string(number) + " serves no stream " + std::to_string(stream));
  }
  return plan::compile(found->second, &strides, nullptr);
}

const std::shared_ptr<Packer>& ShmExposed::packer(std::uint64_t stream) {
  if (const auto known = packers.find(stream); known != packers.end()) return known->second;
  auto made = std::make_shared<Packer>(compiled(stream), memory);
  return packers.emplace(stream, std::move(made)).first->second;
}

const std::shared_ptr<const DeviceBlocks>& ShmExposed::device_blocks(std::uint64_t stream) {
  if (const auto known = blocks.find(stream); known != blocks.end()) return known->second;
  auto program = std::make_shared<const plan::Program>(compiled(stream));
  return blocks
      .emplace(stream, DeviceBlocks::of(std::move(program), plan::BoundSide::source, memory))
      .first->second;
}

ShmTable describe(const ShmExposed& exposed, const Pool& pool) {
  ShmTable table;
  Encoder encoder;
  const auto add = [&](const Place& place) {
    write(encoder, place);
    if (place.segment != nowhere) table.segments.insert(place.segment);
  };
  encoder.integer(exposed.number).string(encode(exposed.forms));
  add(word_place(pool, *exposed.alive));
  add(word_place(pool, *exposed.gate.counter()));
  const Lender* lender = exposed.memory.lender.get();
  const Probe probe = lender != nullptr ? lender->probe() : Probe{};
  encoder.integer(probe.address).raw(view(probe.value));
  for (std::size_t i = 0; i < exposed.forms.size(); ++i) {
    const Extent extent = extent_of(exposed.forms[i]);
    const auto bytes = static_cast<std::size_t>(extent.end - extent.begin);
    std::byte* const first = exposed.memory.first[i];
    const bool on_device = exposed.memory.on_device() && exposed.memory.copiers[i] != nullptr;
    encoder.integer(on_device ? no_address : reinterpret_cast<std::uint64_t>(first));
    std::optional<Place> place;
    if (bytes > 0 && !exposed.memory.elsewhere[i]) place = pool.find(first + extent.begin, bytes);
    if (place) place->offset += static_cast<std::uint64_t>(-extent.begin);
    add(place.value_or(Place{nowhere, 0}));
  }
  table.bytes = std::move(encoder).bytes();
  return table;
}

ShmRemoteRegion::ShmRemoteRegion(std::string_view table, const Segments& segments,
                                 Otherwise otherwise)
    : lender_(std::move(otherwise.lender)) {
  Decoder decoder(table);
  number_ = decoder.integer<std::uint64_t>();
  forms_ = decode_forms(decoder.string());
  alive_ = locate_word(segments, read_place(decoder), words_[0]);
  gate_ = locate_word(segments, read_place(decoder), words_[1]);
  read_probe(decoder);
  for (const TensorForm& form : forms_) {
    addresses_.push_back(decoder.integer<std::uint64_t>());
    const Place place = read_place(decoder);
    const Extent extent = extent_of(form);
    spots_.emplace_back();
    if (extent.begin == extent.end) continue;
    if (place.segment == nowhere) {
      how_ = otherwise.path;
      on_device_ = on_device_ || addresses_.back() == no_address;
    } else {
      spots_.back() = {locate(segments, place, extent), place.offset};
    }
  }
  decoder.end();
  if (on_device_) how_ = Path::packed;
}

copy::Sources ShmRemoteRegion::mapped() const {
  if (mapped_.empty()) {
    for (std::size_t i = 0; i < spots_.size(); ++i) {
      const auto& [segment, offset] = spots_[i];
      const Extent extent = extent_of(forms_[i]);
      const auto first = static_cast<std::int64_t>(offset);
      mapped_.push_back(segment == nullptr
                            ? nullptr
                            : segment->data(static_cast<std::size_t>(first + extent.begin),
                                            static_cast<std::size_t>(first + extent.end)) +
                                  offset);
    }
  }
  return mapped_;
}

std::optional<Alias> ShmRemoteRegion::alias() const {
  if (how_ != Path::mapped) return std::nullopt;
  // One mapping per segment, around all of the region's tensors in it.
  struct Part {
    std::size_t begin = SIZE_MAX;
    std::size_t end = 0;
    os::Mapping memory;
  };
  auto parts = std::make_shared<std::map<const ShmSegment*, Part>>();
  for (std::size_t i = 0; i < spots_.size(); ++i) {
    if (spots_[i].segment == nullptr) continue;
    if (!spots_[i].segment->can_alias()) return std::nullopt;
    const Extent extent = extent_of(forms_[i]);
    const auto first = static_cast<std::int64_t>(spots_[i].offset);
    Part& part = (*parts)[spots_[i].segment.get()];
    part.begin = std::min(part.begin, static_cast<std::size_t>(first + extent.begin));
    part.end = std::max(part.end, static_cast<std::size_t>(first + extent.end));
  }
  for (auto& [segment, part] : *parts) {
    part.begin = part.begin / os::page_size() * os::page_size();
    part.memory = segment->alias(part.begin, part.end);
  }
  Alias alias;
  for (const Spot& spot : spots_) {
    std::byte* data = nullptr;
    if (spot.segment != nullptr) {
      const Part& part = parts->at(spot.segment.get());
      data = part.memory.data() + (spot.offset - part.begin);
    }
    alias.tensors.push_back(data);
  }
  alias.memory = std::move(parts);
  return alias;
}

std::optional<Probe> ShmRemoteRegion::probe_in(std::string_view table) {
  Decoder decoder(table);
  decoder.integer<std::uint64_t>();
  decoder.string();
  read_place(decoder);
  read_place(decoder);
  const Probe probe = read_probe(decoder);
  return probe.address != 0 ? std::optional(probe) : std::nullopt;
}

const ShmRemoteRegion& shm_region(const RemoteRegion& region) {
  const auto* ours = dynamic_cast<const ShmRemoteRegion*>(&region);
  if (ours == nullptr) throw Error(Code::invalid_argument, "a region of another fabric");
  return *ours;
}

std::string_view ShmRemoteRegion::path() const noexcept {
  switch (how_) {
    case Path::mapped:
      return "mapped";
    case Path::process_memory:
      return "process_vm_readv";
    case Path::packed:
      break;
  }
  return on_device_ ? "staged" : "packed";
}

}  // namespace tensorbus::fabric
