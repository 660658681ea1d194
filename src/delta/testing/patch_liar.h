// For the tests of patches: a patch that says anything, and a reader that must survive the patch.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "delta/patch/apply.h"
#include "delta/patch/checked_patch.h"
#include "delta/patch/patch_writer.h"
#include "delta/testing/tensors.h"
#include "tensorbus/status.h"

namespace tensorbus::delta {

// A reader of three tensors, with gaps between their elements that nobody may write to.
class LiedToReader {
 public:
  LiedToReader() {
    const Layout one(Mesh({1}), {Replicate{}});
    for (const TestTensor& tensor : targets_) {
      batch_.push_back(plan::make(one, one, tensor.shape, {tensor.dtype, tensor.dtype}));
    }
    plan::Strides strides;
    for (const TestTensor& tensor : targets_) strides.push_back(tensor.strides);
    program_ = plan::compile(plan::read_streams(batch_, 0).front(), nullptr, &strides);
  }

  // A patch that is true, with something for every codec.
  std::vector<std::byte> honest_patch() const {
    std::vector<TestTensor> sources;
    Changes changes;
    std::vector<const std::byte*> from;
    plan::Strides strides;
    plan::RandomCase random(1);
    for (const TestTensor& target : targets_) {
      TestTensor& source = sources.emplace_back(target.dtype, target.shape);
      source.fill(random);
      strides.push_back(source.strides);
      changes.push_back(some_changes(source.elements()));
    }
    for (const TestTensor& source : sources) from.push_back(source.bytes.data());
    const plan::Program program =
        plan::compile(plan::read_streams(batch_, 0).front(), &strides, nullptr);
    const Packed packed(program, plan::BoundSide::source);
    const PatchWriter writer(packed, changes);
    std::vector<std::byte> patch(writer.bytes());
    writer.write({1, 2, 3, 4}, from, patch);
    return patch;
  }

  // Makes the header's own claims true, so that the rest is looked at.
  static void forge_header(std::span<std::byte> patch) {
    if (patch.size() < sizeof(PatchHeader)) return;
    PatchHeader header;
    header.parts = 3;
    header.bytes = patch.size();
    std::memcpy(patch.data(), &header, sizeof header);
    header.checksum = checksum_of(patch);
    std::memcpy(patch.data(), &header, sizeof header);
  }

  enum class Outcome : std::uint8_t { refused, applied, damaged };

  // Refused without a byte written, or applied to elements alone: anything else is damage.
  Outcome read(std::span<const std::byte> bytes) {
    std::vector<TestTensor> targets = targets_;
    try {
      const Packed packed(program_, plan::BoundSide::target);
      const CheckedPatch patch(bytes, packed.parts());
      std::vector<std::byte*> to;
      for (TestTensor& target : targets) to.push_back(target.bytes.data());
      apply_blocks(patch, packed, to, 0, patch.blocks().size());
    } catch (const Error&) {
      const bool same =
          std::ranges::equal(targets, targets_, {}, &TestTensor::bytes, &TestTensor::bytes);
      return same ? Outcome::refused : Outcome::damaged;
    }
    return std::ranges::all_of(targets, gaps_are_whole) ? Outcome::applied : Outcome::damaged;
  }

 private:
  static bool gaps_are_whole(const TestTensor& tensor) {
    const std::size_t item = item_bytes(tensor.dtype);
    for (std::size_t at = 0; at < tensor.bytes.size() / item; ++at) {
      const auto column = static_cast<std::int64_t>(at) % tensor.strides.front();
      if (column < tensor.shape.back()) continue;
      for (std::size_t i = 0; i < item; ++i) {
        if (tensor.bytes[at * item + i] != std::byte{0xA5}) return false;
      }
    }
    return true;
  }

  // Blocks of every density.
  static Bitmap some_changes(std::int64_t elements) {
    constexpr std::int64_t every[] = {400, 40, 3, 1};
    Bitmap changes(elements);
    for (std::int64_t block = 0; block < blocks_of(elements); ++block) {
      const std::int64_t first = block * block_elements;
      const std::int64_t end = std::min(elements, first + block_elements);
      for (std::int64_t i = first; i < end; i += every[block % 4]) changes.set(i);
    }
    return changes;
  }

  std::vector<TestTensor> targets_ = {{Dtype::bfloat16, {400, 101}, {103, 1}},
                                      {Dtype::float32, {3, 5}, {6, 1}},
                                      {Dtype::int8, {1, 9000}, {9001, 1}}};
  std::vector<plan::Plan> batch_;
  plan::Program program_;
};

}  // namespace tensorbus::delta
