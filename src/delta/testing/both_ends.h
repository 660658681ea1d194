// For the tests of deltas: the tensors of all ranks of two sides, and what goes between them.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "copy/execute.h"
#include "delta/change/diff.h"
#include "delta/patch/apply.h"
#include "delta/patch/checked_patch.h"
#include "delta/patch/patch_writer.h"
#include "delta/testing/tensors.h"

namespace tensorbus::delta {

using TestTensors = std::vector<TestTensor>;

template <typename Pointer>
std::vector<Pointer> firsts(const TestTensors& tensors) {
  std::vector<Pointer> pointers;
  for (const TestTensor& tensor : tensors) pointers.push_back(tensor.view().data);
  return pointers;
}

inline plan::Strides strides_of(const TestTensors& tensors) {
  plan::Strides strides;
  for (const TestTensor& tensor : tensors) strides.push_back(tensor.strides);
  return strides;
}

// How a tensor is trained, published and read.
struct TestTypes {
  Dtype trained = Dtype::float32;
  Dtype published = Dtype::bfloat16;
  Dtype read = Dtype::bfloat16;
};

// What one rank of the sending side trains and publishes. Versions are kept for ever, so that any
// can be compared with.
class TestSource {
 public:
  TestSource(TestTensors trained, TestTensors empty_slot)
      : trained_(std::move(trained)), empty_slot_(std::move(empty_slot)) {}

  // Publishes the source's trained tensors as the next version, numbered from 1 on. Nothing
  // precedes the first.
  void publish(plan::RandomCase& random, copy::Crew& crew) {
    if (!slots_.empty()) {
      for (TestTensor& tensor : trained_) tensor.change(random);
    }
    TestTensors& slot = slots_.emplace_back(empty_slot_);
    const TestTensors& previous = slots_.size() == 1 ? slot : slots_[slots_.size() - 2];
    Changes changes;
    for (const TestTensor& tensor : slot) changes.emplace_back(tensor.elements());
    since_[version()] = changes;
    std::vector<Comparison> all;
    for (std::size_t i = 0; i < slot.size(); ++i) {
      all.push_back({trained_[i].view(), slot[i].view(), previous[i].bytes.data(), &changes[i]});
    }
    diff_each(all, crew);
    for (auto& [base, since] : since_) {
      if (base != version()) merge(since, changes);
    }
  }

  std::int64_t version() const { return std::ssize(slots_); }
  const TestTensors& slot(std::int64_t version) const {
    return slots_[static_cast<std::size_t>(version - 1)];
  }
  const Changes& since(std::int64_t base) const { return since_.at(base); }

 private:
  TestTensors trained_;
  TestTensors empty_slot_;
  std::vector<TestTensors> slots_;
  std::map<std::int64_t, Changes> since_;
};

// The shapes of the local tensors of each rank.
using TestLocals = std::map<Rank, std::vector<Shape>>;

// One tensor of a batch, spread in any way on both sides.
struct TestSpread {
  plan::Plan planned;
  TestLocals source;
  TestLocals target;
  Dtype trained;
};

inline TestLocals locals_of(const plan::Spread& spread, const Shape& shape) {
  TestLocals locals;
  if (const auto* layout = std::get_if<Layout>(&spread)) {
    for (const Rank rank : layout->mesh().ranks()) {
      locals[rank] = {layout->local_shape(shape, rank)};
    }
  } else {
    for (const auto& [rank, boxes] : std::get<plan::Boxes>(spread)) {
      for (const plan::Box& box : boxes) locals[rank].push_back(box.shape);
    }
  }
  return locals;
}

inline TestSpread spread_between(const plan::Spread& from, const plan::Spread& to,
                                 const Shape& shape, const TestTypes& types) {
  const plan::Types ends{types.published, types.read};
  const auto* source = std::get_if<Layout>(&from);
  const auto* target = std::get_if<Layout>(&to);
  plan::Plan planned = source && target ? plan::make(*source, *target, shape, ends)
                                        : plan::Plan(plan::Holdings(from, to, shape), ends);
  return {std::move(planned), locals_of(from, shape), locals_of(to, shape), types.trained};
}

// The tensors of a batch at all ranks.
class BothEnds {
 public:
  BothEnds(plan::RandomCase& random, const std::vector<TestSpread>& tensors)
      : crew_(1 + static_cast<std::size_t>(random.below(2))) {
    for (const TestSpread& each : tensors) batch_.push_back(each.planned);
    for (const auto& [rank, unused] : tensors.front().source) {
      TestTensors trained;
      TestTensors slot;
      for (const TestSpread& each : tensors) {
        for (const Shape& shape : padded(each.source.at(rank), each.planned.source_tensors())) {
          trained.emplace_back(each.trained, shape, random.strides(shape)).fill(random);
          slot.emplace_back(each.planned.types().source, shape);
        }
      }
      sources_.emplace(rank, TestSource(std::move(trained), std::move(slot)));
    }
    for (const auto& [rank, unused] : tensors.front().target) {
      for (const TestSpread& each : tensors) {
        for (const Shape& shape : padded(each.target.at(rank), each.planned.target_tensors())) {
          targets_[rank].emplace_back(each.planned.types().target, shape, random.strides(shape));
        }
      }
    }
  }

  void publish(plan::RandomCase& random) {
    for (auto& [rank, source] : sources_) source.publish(random, crew_);
  }
  std::int64_t version() const { return sources_.begin()->second.version(); }

  const TestTensors& target(Rank reader) const { return targets_.at(reader); }
  std::vector<Rank> readers() const {
    std::vector<Rank> ranks;
    for (const auto& [rank, tensors] : targets_) ranks.push_back(rank);
    return ranks;
  }

  // What the reader has after it has read all of a version.
  TestTensors dense(Rank reader, std::int64_t version) const {
    TestTensors tensors = targets_.at(reader);
    const plan::Strides target = strides_of(tensors);
    for (const plan::Stream& stream : plan::read_streams(batch_, reader)) {
      const TestTensors& slot = source_of(stream).slot(version);
      const plan::Strides source = strides_of(slot);
      const auto from = firsts<const std::byte*>(slot);
      const copy::Sources members[] = {from};
      copy::execute(plan::compile(stream, &source, &target), members, firsts<std::byte*>(tensors));
    }
    return tensors;
  }
  void read_dense(Rank reader, std::int64_t version) {
    targets_.at(reader) = dense(reader, version);
  }

  // One patch for each of its sources, in any pieces that the streams are cut into.
  std::vector<std::vector<std::byte>> patches(Rank reader, std::int64_t base, std::int64_t version,
                                              std::int64_t chunk_bytes = 4096) const {
    std::vector<std::vector<std::byte>> all;
    for (const plan::Stream& stream : plan::read_streams(batch_, reader, chunk_bytes)) {
      const TestSource& source = source_of(stream);
      const TestTensors& slot = source.slot(version);
      const plan::Strides strides = strides_of(slot);
      const plan::Program program = plan::compile(stream, &strides, nullptr);
      const Packed packed(program, plan::BoundSide::source);
      const PatchWriter writer(packed, source.since(base));
      std::vector<std::byte>& patch = all.emplace_back(writer.bytes());
      writer.write({1, base, version, all.size()}, firsts<const std::byte*>(slot), patch);
    }
    return all;
  }

  // The reader applies the patches that it is given, at most this share of the blocks of each.
  void apply(Rank reader, const std::vector<std::vector<std::byte>>& patches, double share = 1) {
    TestTensors& tensors = targets_.at(reader);
    const plan::Strides strides = strides_of(tensors);
    std::size_t next = 0;
    for (const plan::Stream& stream : plan::read_streams(batch_, reader)) {
      const plan::Program program = plan::compile(stream, nullptr, &strides);
      const Packed packed(program, plan::BoundSide::target);
      const CheckedPatch patch(patches.at(next++), packed.parts());
      const auto to = firsts<std::byte*>(tensors);
      if (share == 1) {
        delta::apply(patch, packed, to, crew_);
        continue;
      }
      const auto blocks = static_cast<double>(patch.blocks().size());
      apply_blocks(patch, packed, to, 0, static_cast<std::size_t>(share * blocks));
    }
  }

 private:
  // Parts count as many tensors of a rank as any rank has.
  static std::vector<Shape> padded(std::vector<Shape> shapes, std::size_t count) {
    shapes.resize(count, Shape{0});
    return shapes;
  }

  const TestSource& source_of(const plan::Stream& stream) const {
    return sources_.at(stream.source.ranks.front());
  }

  copy::Crew crew_;
  std::vector<plan::Plan> batch_;
  std::map<Rank, TestSource> sources_;
  std::map<Rank, TestTensors> targets_;
};

}  // namespace tensorbus::delta
