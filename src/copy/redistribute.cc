#include "copy/redistribute.h"

#include <algorithm>
#include <string>
#include <vector>

#include "copy/execute.h"
#include "tensor/global_shape.h"
#include "tensorbus/plan.h"
#include "tensorbus/status.h"

namespace tensorbus::copy {
namespace {

// One side of the redistribution.
class Side {
 public:
  Side(std::string name, const Layout& layout, std::span<const TensorView> views)
      : name_(std::move(name)), layout_(layout), views_(views) {
    if (views_.size() != layout_.mesh().size()) {
      fail("a mesh of " + std::to_string(layout_.mesh().size()) + " ranks was given " +
           std::to_string(views_.size()) + " tensors");
    }
    for (const TensorView& view : views_) {
      if (view.dtype != dtype()) {
        fail(tensor_of(view) + " is " + std::string(to_string(view.dtype)) + ", " +
             tensor_of(views_.front()) + " is " + std::string(to_string(dtype())));
      }
    }
  }

  Dtype dtype() const { return views_.front().dtype; }

  Shape global_shape() const try {
    return tensorbus::global_shape(layout_, local_shapes());
  } catch (const Error& error) {
    fail(error.what());
  }

  void check_shape(const Shape& shape) const try {
    check_local_shapes(layout_, shape, local_shapes());
  } catch (const Error& error) {
    fail(error.what());
  }

  void check_writable() const {
    for (const TensorView& view : views_) {
      if (view.read_only) fail(tensor_of(view) + " is read-only");
      if (repeats_itself(view)) {
        fail(tensor_of(view) + " is expanded: several of its elements share one address");
      }
    }
  }

  const TensorView& of(Rank rank) const { return views_[layout_.mesh().index_of(rank)]; }

  plan::Strides strides_of(Rank rank) const {
    const TensorView& view = of(rank);
    return {Shape(view.strides.begin(), view.strides.end())};
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(Code::invalid_argument, name_ + ": " + message);
  }

  std::vector<Shape> local_shapes() const {
    std::vector<Shape> shapes;
    for (const TensorView& view : views_) shapes.emplace_back(view.shape.begin(), view.shape.end());
    return shapes;
  }

  std::string tensor_of(const TensorView& view) const {
    const auto index = static_cast<std::size_t>(&view - views_.data());
    return "the tensor of rank " + std::to_string(layout_.mesh().ranks()[index]);
  }

  std::string name_;
  const Layout& layout_;
  std::span<const TensorView> views_;
};

bool members_are_strided_alike(const plan::Group& group, const Side& source) {
  const auto& first = source.of(group.ranks.front()).strides;
  return std::ranges::all_of(
      group.ranks, [&](Rank rank) { return std::ranges::equal(source.of(rank).strides, first); });
}

// Members whose strides differ have no run in common: each packs by its own program.
void reduce_packed(const plan::Stream& stream, const Side& source,
                   const plan::Program& target_program, Targets to) {
  std::vector<plan::Program> programs;
  for (const Rank rank : stream.source.ranks) {
    const plan::Strides strides = source.strides_of(rank);
    programs.push_back(plan::compile(stream, &strides, nullptr));
  }
  std::vector<std::vector<std::byte>> wires(programs.size());
  for (std::size_t chunk = 0; chunk < target_program.chunks.size(); ++chunk) {
    for (std::size_t member = 0; member < programs.size(); ++member) {
      const plan::Chunk& packed = programs[member].chunks[chunk];
      const std::byte* first = source.of(stream.source.ranks[member]).data;
      wires[member].resize(static_cast<std::size_t>(packed.wire_bytes));
      gather_chunk(programs[member], packed, {&first, 1}, wires[member]);
    }
    const std::vector<std::span<const std::byte>> views(wires.begin(), wires.end());
    reduce_packed_chunk(target_program, target_program.chunks[chunk], views, to);
  }
}

void run_stream(const plan::Stream& stream, const Side& source, const Side& target) {
  const plan::Strides target_strides = target.strides_of(stream.reader);
  std::byte* target_data = target.of(stream.reader).data;
  const Targets to(&target_data, 1);
  if (!members_are_strided_alike(stream.source, source)) {
    return reduce_packed(stream, source, plan::compile(stream, nullptr, &target_strides), to);
  }
  const plan::Strides source_strides = source.strides_of(stream.source.ranks.front());
  const plan::Program program = plan::compile(stream, &source_strides, &target_strides);
  std::vector<const std::byte*> first;
  for (const Rank rank : stream.source.ranks) first.push_back(source.of(rank).data);
  std::vector<Sources> members;
  for (const std::byte* const& data : first) members.emplace_back(&data, 1);
  execute(program, members, to);
}

}  // namespace

void redistribute(const Layout& source_layout, std::span<const TensorView> from,
                  const Layout& target_layout, std::span<const TensorView> to) {
  const plan::Tables tables(source_layout, target_layout);
  const Side source("source", source_layout, from);
  const Side target("target", target_layout, to);
  const Shape shape = source.global_shape();
  target.check_shape(shape);
  target.check_writable();
  const plan::Plan batch[] = {plan::Plan(tables, shape, {source.dtype(), target.dtype()})};
  for (const Rank reader : target_layout.mesh().ranks()) {
    for (const plan::Stream& stream : plan::read_streams(batch, reader)) {
      run_stream(stream, source, target);
    }
  }
}

}  // namespace tensorbus::copy
