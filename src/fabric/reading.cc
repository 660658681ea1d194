#include "fabric/reading.h"

#include <algorithm>

namespace tensorbus::fabric {
namespace {

plan::Strides target_strides(const Read& read) {
  plan::Strides strides;
  for (const TensorView& view : read.targets) {
    strides.emplace_back(view.strides.begin(), view.strides.end());
  }
  return strides;
}

// The members' tensors that the stream reads have the same strides everywhere.
bool strided_alike(const Read& read) {
  const Forms& first = read.sources.front().region->forms();
  return std::ranges::all_of(read.sources, [&](const Source& source) {
    return std::ranges::all_of(read.stream->parts, [&](const plan::Part& part) {
      return source.region->forms()[part.tensor].strides == first[part.tensor].strides;
    });
  });
}

}  // namespace

void check(const Read& read) {
  if (read.stream == nullptr) throw Error(Code::invalid_argument, "a read without a stream");
  if (read.sources.empty() || read.sources.size() != read.stream->source.ranks.size()) {
    throw Error(Code::invalid_argument,
                "a stream from " + std::to_string(read.stream->source.ranks.size()) +
                    " sources was given " + std::to_string(read.sources.size()));
  }
  for (const Source& source : read.sources) {
    if (source.peer == nullptr || source.region == nullptr) {
      throw Error(Code::invalid_argument, "a source without peer or region");
    }
    check_source(*read.stream, source.region->forms());
  }
  check_target(*read.stream, read.targets);
}

Reading::Reading(Read read) : read_(std::move(read)) {
  check(read_);
  const plan::Strides targets = target_strides(read_);
  const TensorMemory memory = memory_of(read_.targets, read_.lender);
  target_program_ = plan::compile(*read_.stream, nullptr, &targets);
  target_staging_.emplace(target_program_, Staging::Side::target, memory);
  if (strided_alike(read_)) {
    const plan::Strides source = strides_of(read_.sources.front().region->forms());
    direct_program_ = plan::compile(*read_.stream, &source, &targets);
    direct_staging_.emplace(*direct_program_, Staging::Side::target, memory);
  }
  caches_ =
      target_staging_->idle() ? copy::caches_for(read_.stream->payload_bytes) : copy::Caches::keep;
}

void Reading::copy(std::size_t chunk, std::span<const copy::Sources> members) {
  if (!direct_program_) return copy_packed(chunk, members);
  const plan::Chunk& part = direct_program_->chunks[chunk];
  if (direct_program_->source.reduces()) {
    copy::reduce_chunk(*direct_program_, part, members, direct_targets());
  } else {
    copy::copy_chunk(*direct_program_, part, members.front(), direct_targets(), caches_);
  }
  store_direct(chunk);
}

void Reading::scatter(std::size_t chunk, std::span<const std::span<const std::byte>> wires) {
  const plan::Chunk& part = target_program_.chunks[chunk];
  if (target_program_.source.reduces()) {
    copy::reduce_packed_chunk(target_program_, part, wires, target_staging_->tensors());
  } else {
    copy::scatter_chunk(target_program_, part, wires.front(), target_staging_->tensors(), caches_);
  }
  target_staging_->store(chunk);
}

void Reading::copy_packed(std::size_t chunk, std::span<const copy::Sources> members) {
  if (source_programs_.empty()) {
    for (const Source& source : read_.sources) {
      const plan::Strides strides = strides_of(source.region->forms());
      source_programs_.push_back(plan::compile(*read_.stream, &strides, nullptr));
    }
    wires_.resize(source_programs_.size());
  }
  std::vector<std::span<const std::byte>> wires;
  for (std::size_t member = 0; member < members.size(); ++member) {
    const plan::Chunk& part = source_programs_[member].chunks[chunk];
    wires_[member].resize(static_cast<std::size_t>(part.wire_bytes));
    copy::gather_chunk(source_programs_[member], part, members[member], wires_[member]);
    wires.emplace_back(wires_[member]);
  }
  scatter(chunk, wires);
}

}  // namespace tensorbus::fabric
