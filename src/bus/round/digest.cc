#include "bus/round/digest.h"

#include <xxhash.h>

#include <algorithm>

#include "fabric/core/region.h"

namespace tensorbus::bus {
namespace {

constexpr std::int64_t sampled = 16;                           // one chunk in so many
constexpr std::int64_t chunk_bytes = std::int64_t{256} << 10;  // stays in the cache

// Packed in the type of the target. The order of elements stays as it is.
plan::Stream in_target_type(plan::Stream stream) {
  stream.chunk_bytes = std::min(stream.chunk_bytes, chunk_bytes);
  std::int64_t offset = 0;
  stream.payload_bytes = 0;
  for (plan::Part& part : stream.parts) {
    part.wire = part.types.target;
    part.wire_offset = offset;
    const std::int64_t bytes = part.elements * static_cast<std::int64_t>(item_bytes(part.wire));
    stream.payload_bytes += bytes;
    stream.wire_bytes = offset + bytes;
    offset = (stream.wire_bytes + plan::part_alignment - 1) / plan::part_alignment *
             plan::part_alignment;
  }
  return stream;
}

// Gathers from this end's tensors.
plan::Program program_for(const plan::Stream& stream, Digest::End end,
                          std::span<const TensorView> tensors) {
  const plan::Strides strides = fabric::strides_of(tensors);
  if (end == Digest::End::source) return plan::compile(stream, &strides, nullptr);
  plan::Program program = plan::compile(stream, nullptr, &strides);
  for (plan::ProgramPart& part : program.parts) {
    part.source = part.target;
    part.source_tensor = part.target_tensor;
  }
  for (plan::Run& run : program.runs) {
    run.source = run.target;
    run.source_row = run.target_row;
    run.source_plane = run.target_plane;
  }
  return program;
}

}  // namespace

Digest::Digest(const plan::Stream& stream, End end, Verify verify,
               std::span<const TensorView> tensors, std::shared_ptr<const fabric::Lender> lender,
               device::Copiers* copiers)
    : stream_(in_target_type(stream)),
      verify_(verify),
      program_(program_for(stream_, end, tensors)),
      staging_(program_, plan::BoundSide::source,
               fabric::memory_of(tensors, std::move(lender), copiers)),
      wire_(static_cast<std::size_t>(stream_.chunk_bytes)),
      state_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {}

Digest::~Digest() = default;

bool Digest::serves(const plan::Stream& stream, Verify verify) const {
  const plan::Stream other = in_target_type(stream);
  return verify == verify_ && other.chunk_bytes == stream_.chunk_bytes &&
         other.parts == stream_.parts;
}

void Digest::begin(std::int64_t round) {
  round_ = round;
  next_chunk_ = 0;
  begun_ = 0;
  staging_.settle();  // of a round that was given up
  sums_.clear();
  XXH3_64bits_reset(state_.get());
}

bool Digest::work(std::int64_t& budget) {
  while (sums_.size() < stream_.parts.size()) {
    if (budget <= 0) return false;
    if (!step()) return false;
    budget -= stream_.chunk_bytes;
  }
  return true;
}

bool Digest::is_left_out(std::size_t chunk) const noexcept {
  return verify_ == Verify::sample && (static_cast<std::int64_t>(chunk) + round_) % sampled != 0;
}

bool Digest::step() {
  const std::size_t count = program_.chunks.size();
  while (next_chunk_ < count && is_left_out(next_chunk_)) ++next_chunk_;
  if (next_chunk_ < count) {
    if (!look_ahead()) return false;
    add(next_chunk_++);
    return true;
  }
  while (sums_.size() < stream_.parts.size()) finish_part();
  return true;
}

bool Digest::look_ahead() {
  const std::size_t end = std::min(program_.chunks.size(), next_chunk_ + staging_.slots());
  for (begun_ = std::max(begun_, next_chunk_); begun_ < end; ++begun_) {
    if (!is_left_out(begun_)) staging_.fetch(begun_);
  }
  return staging_.ready(next_chunk_);
}

void Digest::add(std::size_t index) {
  const plan::Chunk& chunk = program_.chunks[index];
  bool packed = false;
  for (const plan::Run& run : program_.runs_of(chunk)) {
    while (sums_.size() < run.part) finish_part();
    const plan::ProgramPart& part = program_.parts[run.part];
    const std::byte* first = staging_.sources()[part.source_tensor] + run.source;
    if (run.rows > 1 || run.planes > 1 || part.source != part.wire) {
      if (!packed) copy::gather_chunk(program_, chunk, staging_.sources(), wire_);
      packed = true;
      first = wire_.data() + run.wire;
    }
    XXH3_64bits_update(state_.get(), first,
                       static_cast<std::size_t>(run.elements()) * item_bytes(part.wire));
  }
}

void Digest::finish_part() {
  sums_.push_back(XXH3_64bits_digest(state_.get()));
  XXH3_64bits_reset(state_.get());
}

}  // namespace tensorbus::bus
