#include "bus/round/fold.h"

#include <algorithm>

#include "fabric/core/region.h"

namespace tensorbus::bus {
namespace {

constexpr std::size_t alignment = 64;  // of tensors in scratch

// Where the spans begin and end in the target.
struct Bounds {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

Bounds bounds_of(const plan::Spans& spans) {
  Bounds bounds{spans.front().target, 0};
  for (const plan::Span& span : spans) {
    bounds.first = std::min(bounds.first, span.target);
    bounds.end = std::max(bounds.end, span.target + span.length);
  }
  return bounds;
}

// The same reduction, of tensors that member streams have filled.
plan::Stream from_scratch(plan::Stream reduction) {
  for (plan::Part& part : reduction.parts) {
    part.source_tensor = part.target_tensor;
    for (std::size_t dim = 0; dim < part.dims.size(); ++dim) {
      const Bounds bounds = bounds_of(part.dims[dim]);
      part.source_shape[dim] = bounds.end - bounds.first;
      for (plan::Span& span : part.dims[dim]) span.source = span.target - bounds.first;
    }
  }
  return reduction;
}

plan::Strides strides_of_scratch(const plan::Stream& reduction, std::size_t tensors) {
  plan::Strides strides(tensors);
  for (const plan::Part& part : reduction.parts) {
    strides[part.target_tensor] = plan::contiguous_strides(part.source_shape);
  }
  return strides;
}

plan::Program program_of(const plan::Stream& reduction, const plan::Strides& from,
                         const plan::Strides& to) {
  return plan::compile(reduction, &from, &to);
}

std::size_t scratch_bytes(const plan::Part& part) {
  std::size_t bytes = item_bytes(part.types.source);
  for (const std::int64_t length : part.source_shape) bytes *= static_cast<std::size_t>(length);
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

plan::Stream member_stream(const plan::Stream& reduction, Rank member) {
  plan::Stream stream = reduction;
  stream.source = {{member}, {}};
  for (plan::Part& part : stream.parts) {
    part.types.target = part.types.source;
    for (std::size_t dim = 0; dim < part.dims.size(); ++dim) {
      const Bounds bounds = bounds_of(part.dims[dim]);
      part.target_shape[dim] = bounds.end - bounds.first;
      for (plan::Span& span : part.dims[dim]) span.target -= bounds.first;
    }
  }
  return stream;
}

GroupFold::GroupFold(const plan::Stream& reduction, std::span<const TensorView> targets,
                     std::shared_ptr<const fabric::Lender> lender, device::Copiers* copiers)
    : reduction_(from_scratch(reduction)),
      strides_(strides_of_scratch(reduction_, targets.size())),
      program_(program_of(reduction_, strides_, fabric::strides_of(targets))),
      targets_(program_, fabric::memory_of(targets, std::move(lender), copiers)) {
  std::size_t bytes = 0;
  for (const plan::Part& part : reduction_.parts) bytes += scratch_bytes(part);
  for (const Rank rank : reduction.source.ranks) {
    Member member;
    member.stream = std::make_shared<const plan::Stream>(member_stream(reduction, rank));
    member.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    member.tensors.resize(targets.size());
    member.first.resize(targets.size());
    std::size_t offset = 0;
    for (const plan::Part& part : reduction_.parts) {
      std::byte* first = member.memory.get() + offset;
      member.tensors[part.target_tensor] = {first, part.types.source, part.source_shape,
                                            strides_[part.target_tensor]};
      member.first[part.target_tensor] = first;
      offset += scratch_bytes(part);
    }
    members_.push_back(std::move(member));
  }
}

bool GroupFold::work(std::int64_t& budget) {
  std::vector<copy::Sources> sources;
  for (const Member& member : members_) sources.emplace_back(member.first);
  while (next_chunk_ < targets_.program().chunks.size()) {
    if (budget <= 0 || !targets_.ready(next_chunk_)) return false;
    const plan::Chunk& chunk = targets_.program().chunks[next_chunk_];
    budget -= chunk.wire_bytes * static_cast<std::int64_t>(members_.size());
    copy::reduce_chunk(targets_.program(), chunk, sources, targets_.tensors());
    targets_.store(next_chunk_++);
  }
  return targets_.finished();
}

}  // namespace tensorbus::bus
