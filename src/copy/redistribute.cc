#include "copy/redistribute.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/refuse.h"
#include "copy/cast.h"
#include "copy/execute.h"
#include "tensor/global_shape.h"
#include "tensorbus/plan.h"
#include "tensorbus/status.h"

namespace tensorbus::copy {
namespace {

// A tensor as the ranks of a mesh have it: source or target of the redistribution.
class MeshTensor {
 public:
  MeshTensor(std::string name, const Layout& layout, std::span<const TensorView> views)
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

  Locals locals() const {
    Locals locals;
    for (std::size_t at = 0; at < views_.size(); ++at) {
      locals[layout_.mesh().ranks()[at]] = {views_[at]};
    }
    return locals;
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

void check_types(const char* side, const Locals& locals, Dtype dtype) {
  for (const auto& [rank, views] : locals) {
    for (const TensorView& view : views) {
      if (view.dtype == dtype) continue;
      refuse(std::string(side) + ": a tensor of rank " + std::to_string(rank) + " is " +
             std::string(to_string(view.dtype)) + ", others are " + std::string(to_string(dtype)));
    }
  }
}

void check_writable(const Locals& locals) {
  for (const auto& [rank, views] : locals) {
    const std::string which = "target: the tensor of rank " + std::to_string(rank);
    for (const TensorView& view : views) {
      if (view.read_only) refuse(which + " is read-only");
      if (repeats_itself(view)) {
        refuse(which + " is expanded: several of its elements share one address");
      }
    }
  }
}

plan::Strides strides_of(const std::vector<TensorView>& views) {
  plan::Strides strides;
  for (const TensorView& view : views) {
    strides.emplace_back(view.strides.begin(), view.strides.end());
  }
  return strides;
}

template <typename Pointer>
std::vector<Pointer> first_of(const std::vector<TensorView>& views) {
  std::vector<Pointer> first;
  for (const TensorView& view : views) first.push_back(view.data);
  return first;
}

bool members_are_strided_alike(const plan::Group& group, const Locals& source) {
  const plan::Strides first = strides_of(source.at(group.ranks.front()));
  return std::ranges::all_of(group.ranks,
                             [&](Rank rank) { return strides_of(source.at(rank)) == first; });
}

// Members whose strides differ have no run in common: each packs by its own program.
void reduce_packed(const plan::Stream& stream, const Locals& source,
                   const plan::Program& target_program, Targets to) {
  std::vector<plan::Program> programs;
  for (const Rank rank : stream.source.ranks) {
    const plan::Strides strides = strides_of(source.at(rank));
    programs.push_back(plan::compile(stream, &strides, nullptr));
  }
  std::vector<std::vector<std::byte>> wires(programs.size());
  for (std::size_t chunk = 0; chunk < target_program.chunks.size(); ++chunk) {
    for (std::size_t member = 0; member < programs.size(); ++member) {
      const plan::Chunk& packed = programs[member].chunks[chunk];
      const auto first = first_of<const std::byte*>(source.at(stream.source.ranks[member]));
      wires[member].resize(static_cast<std::size_t>(packed.wire_bytes));
      gather_chunk(programs[member], packed, first, wires[member]);
    }
    const std::vector<std::span<const std::byte>> views(wires.begin(), wires.end());
    reduce_packed_chunk(target_program, target_program.chunks[chunk], views, to);
  }
}

void run_stream(const plan::Stream& stream, const Locals& source, const Locals& target) {
  const plan::Strides target_strides = strides_of(target.at(stream.reader));
  const auto target_data = first_of<std::byte*>(target.at(stream.reader));
  const Targets to(target_data);
  if (!members_are_strided_alike(stream.source, source)) {
    return reduce_packed(stream, source, plan::compile(stream, nullptr, &target_strides), to);
  }
  const plan::Strides source_strides = strides_of(source.at(stream.source.ranks.front()));
  const plan::Program program = plan::compile(stream, &source_strides, &target_strides);
  std::vector<std::vector<const std::byte*>> first;
  for (const Rank rank : stream.source.ranks) {
    first.push_back(first_of<const std::byte*>(source.at(rank)));
  }
  const std::vector<Sources> members(first.begin(), first.end());
  execute(program, members, to);
}

// Bytes side by side.
struct Slice {
  const std::byte* from;
  std::byte* to;
  std::size_t bytes;
};

bool is_dense(const TensorView& view) {
  return std::ranges::equal(view.strides,
                            plan::contiguous_strides(Shape(view.shape.begin(), view.shape.end())));
}

bool has_equal_bytes(const TensorView& from, const TensorView& to) {
  return from.dtype == to.dtype && std::ranges::equal(from.shape, to.shape) && is_dense(from) &&
         is_dense(to) && !to.read_only;
}

std::size_t bytes_of(const TensorView& view) {
  const Shape shape(view.shape.begin(), view.shape.end());
  return item_bytes(view.dtype) * static_cast<std::size_t>(element_count(shape));
}

void append_slices(Slice rest, std::size_t longest, std::vector<Slice>& slices) {
  while (rest.bytes > 0) {
    const std::size_t bytes = std::min(rest.bytes, longest);
    slices.push_back({rest.from, rest.to, bytes});
    rest = {rest.from + bytes, rest.to + bytes, rest.bytes - bytes};
  }
}

}  // namespace

void redistribute(const plan::Plan& plan, const Locals& from, const Locals& to) {
  check_types("source", from, plan.types().source);
  check_types("target", to, plan.types().target);
  check_writable(to);
  for (const auto& [reader, views] : to) {
    for (const plan::Stream& stream : plan::read_streams({&plan, 1}, reader)) {
      run_stream(stream, from, to);
    }
  }
}

void redistribute(const Layout& source_layout, std::span<const TensorView> from,
                  const Layout& target_layout, std::span<const TensorView> to) {
  const plan::Tables tables(source_layout, target_layout);
  const MeshTensor source("source", source_layout, from);
  const MeshTensor target("target", target_layout, to);
  const Shape shape = source.global_shape();
  target.check_shape(shape);
  redistribute(plan::Plan(tables, shape, {source.dtype(), target.dtype()}), source.locals(),
               target.locals());
}

void copy_each(std::span<const TensorView> from, std::span<const TensorView> to, Crew& crew) {
  if (from.size() != to.size()) refuse("not as many targets as sources");
  // One thread moves a tensor at once: memcpy then knows best which way.
  const bool alone = crew.size() == 1;
  const std::size_t longest = alone ? SIZE_MAX : std::size_t{plan::default_chunk_bytes};
  const Layout one(Mesh({1}), {Replicate{}});
  std::vector<Slice> slices;
  std::size_t total = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (has_equal_bytes(from[i], to[i])) {
      append_slices({from[i].data, to[i].data, bytes_of(from[i])}, longest, slices);
      total += bytes_of(from[i]);
    } else {
      redistribute(one, from.subspan(i, 1), one, to.subspan(i, 1));
    }
  }
  const Caches caches = alone ? Caches::keep : caches_for(static_cast<std::int64_t>(total));
  const CastRow copy_row = copy_of_size(1).row;
  crew.run(slices.size(), [&](std::size_t at) {
    const Slice& slice = slices[at];
    copy_row(slice.from, slice.to, slice.bytes, caches);
    if (caches == Caches::bypass) simd::fence();
  });
}

void copy_tensor(const TensorView& from, const TensorView& to) {
  Crew alone;
  copy_each({&from, 1}, {&to, 1}, alone);
}

}  // namespace tensorbus::copy
