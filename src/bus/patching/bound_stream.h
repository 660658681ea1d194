// A stream as patches see it at one of its ends.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "delta/patch/fingerprint.h"
#include "delta/patch/packed.h"
#include "fabric/core/region.h"
#include "tensor/view.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {

class BoundStream {
 public:
  // `tensors`: those of this end, as the stream counts them; their forms stay as they are.
  BoundStream(std::shared_ptr<const plan::Stream> stream, plan::BoundSide side,
              std::span<const TensorView> tensors)
      : stream_(std::move(stream)),
        fingerprint_(delta::fingerprint_of(*stream_)),
        program_(compile(*stream_, side, tensors)),
        packed_(program_, side) {}
  BoundStream(const BoundStream&) = delete;
  BoundStream& operator=(const BoundStream&) = delete;

  // What is reduced when it is read has no patches.
  static bool has_patches(const plan::Stream& stream) noexcept { return !stream.source.reduces(); }

  const plan::Stream& stream() const noexcept { return *stream_; }
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }
  const delta::Packed& packed() const noexcept { return packed_; }
  std::int64_t elements() const noexcept {
    std::int64_t sum = 0;
    for (const delta::PackedPart& part : packed_.parts()) sum += part.elements;
    return sum;
  }
  // Whoever gets the same, in the same order, gets the same patches.
  bool carries_the_same(const plan::Stream& other) const { return stream_->parts == other.parts; }

 private:
  static plan::Program compile(const plan::Stream& stream, plan::BoundSide side,
                               std::span<const TensorView> tensors) {
    const plan::Strides strides = fabric::strides_of(tensors);
    return side == plan::BoundSide::source ? plan::compile(stream, &strides, nullptr)
                                           : plan::compile(stream, nullptr, &strides);
  }

  const std::shared_ptr<const plan::Stream> stream_;
  const std::uint64_t fingerprint_;
  const plan::Program program_;
  const delta::Packed packed_;
};

}  // namespace tensorbus::bus
