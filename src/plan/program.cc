#include <algorithm>

#include "plan/stripe.h"
#include "tensor/checked.h"
#include "tensorbus/plan.h"

namespace tensorbus::plan {
namespace {

// `count` repetitions at these distances in bytes.
struct Loop {
  std::int64_t count = 1;
  std::int64_t source = 0;
  std::int64_t target = 0;
};

// Outermost first; neighbours that continue each other on both sides are one loop.
class Nest {
 public:
  void add(Loop inner) {
    if (inner.count == 1) return;
    if (!loops_.empty()) {
      Loop& outer = loops_.back();
      if (outer.source == inner.source * inner.count &&
          outer.target == inner.target * inner.count) {
        outer = {outer.count * inner.count, inner.source, inner.target};
        return;
      }
    }
    loops_.push_back(inner);
  }
  const std::vector<Loop>& loops() const noexcept { return loops_; }

 private:
  std::vector<Loop> loops_;
};

// The distances of a part's elements in one side's memory; 0 when that side is not bound.
struct Distances {
  std::int64_t item = 0;
  Shape strides;  // bytes
};

Distances distances_of(const Strides* strides, std::size_t tensor, const Shape& local_shape,
                       Dtype dtype, const char* name) {
  if (strides == nullptr) return {0, Shape(local_shape.size(), 0)};
  const std::string which = std::string(name) + " tensor " + std::to_string(tensor);
  if (tensor >= strides->size() || (*strides)[tensor].size() != local_shape.size()) {
    throw Error(Code::invalid_argument, which + " needs " + std::to_string(local_shape.size()) +
                                            " strides for its local shape " +
                                            to_string(local_shape));
  }
  Distances distances{static_cast<std::int64_t>(item_bytes(dtype)), (*strides)[tensor]};
  // What the farthest element needs bounds everything computed later.
  std::int64_t extent = distances.item;
  for (std::size_t dim = 0; dim < local_shape.size(); ++dim) {
    std::int64_t& stride = distances.strides[dim];
    stride = checked_multiply(stride, distances.item, which.c_str());
    const std::int64_t reach = checked_multiply(stride, local_shape[dim], which.c_str());
    if (reach == INT64_MIN) throw Error(Code::invalid_argument, which + " is too large");
    extent = checked_add(extent, std::abs(reach), which.c_str());
  }
  return distances;
}

class Compiler {
 public:
  explicit Compiler(const Stream& stream) : chunk_bytes_(stream.chunk_bytes) {
    program_.reader = stream.reader;
    program_.source = stream.source;
    const std::int64_t count = stream.chunk_count();
    program_.chunks.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      program_.chunks.push_back(
          {0, 0, std::min(chunk_bytes_, stream.wire_bytes - i * chunk_bytes_)});
    }
  }

  void add(const Part& part, const Distances& source, const Distances& target) {
    program_.parts.push_back(
        {part.source_tensor, part.target_tensor, part.types.source, part.wire, part.types.target});
    wire_ = part.wire_offset;
    wire_item_ = static_cast<std::int64_t>(item_bytes(part.wire));
    source_item_ = source.item;
    target_item_ = target.item;

    std::vector<std::vector<Stripe>> stripes;
    for (const Spans& spans : part.dims) stripes.push_back(stripes_of(spans));
    std::vector<std::size_t> choice(stripes.size(), 0);
    while (true) {
      add_box(stripes, choice, source, target);
      std::size_t dim = stripes.size();
      while (dim > 0 && ++choice[dim - 1] == stripes[dim - 1].size()) choice[--dim] = 0;
      if (dim == 0) return;
    }
  }

  Program finish() && { return std::move(program_); }

 private:
  // In bytes from the first elements of the two tensors.
  struct Offsets {
    std::int64_t source = 0;
    std::int64_t target = 0;

    Offsets after(const Loop& loop, std::int64_t steps) const {
      return {source + steps * loop.source, target + steps * loop.target};
    }
  };

  void add_box(const std::vector<std::vector<Stripe>>& stripes,
               const std::vector<std::size_t>& choice, const Distances& source,
               const Distances& target) {
    Nest nest;
    Offsets first;
    for (std::size_t dim = 0; dim < stripes.size(); ++dim) {
      const Stripe& stripe = stripes[dim][choice[dim]];
      const std::int64_t source_stride = source.strides[dim];
      const std::int64_t target_stride = target.strides[dim];
      first.source += stripe.first.source * source_stride;
      first.target += stripe.first.target * target_stride;
      nest.add(
          {stripe.count, stripe.source_step * source_stride, stripe.target_step * target_stride});
      nest.add({stripe.first.length, source_stride, target_stride});
    }
    loops_ = nest.loops();
    // The innermost loop gives the length of runs; where elements do not lie side by side, runs
    // have length 1.
    if (loops_.empty() || loops_.back().source != source_item_ ||
        loops_.back().target != target_item_) {
      loops_.push_back({1, source_item_, target_item_});
    }
    inner_.assign(loops_.size(), 1);
    for (std::size_t level = loops_.size(); level-- > 1;) {
      inner_[level - 1] = inner_[level] * loops_[level].count;
    }

    const std::int64_t total = inner_[0] * loops_[0].count;
    for (std::int64_t done = 0; done < total;) {
      const std::int64_t room = (chunk_bytes_ - wire_ % chunk_bytes_) / wire_item_;
      const std::int64_t end = std::min(total, done + room);
      add_range(0, first, done, end);
      done = end;
    }
  }

  // Elements [begin, end) of the loops from `level` on: a ragged start, whole steps, a ragged end.
  void add_range(std::size_t level, Offsets offsets, std::int64_t begin, std::int64_t end) {
    const Loop& loop = loops_[level];
    const std::int64_t inner = inner_[level];
    if (inner == 1 && level + 1 == loops_.size()) {
      add_run(offsets.after(loop, begin), level, end - begin);
      return;
    }
    std::int64_t step = begin / inner;
    if (begin % inner != 0) {
      const std::int64_t start = step * inner;
      add_range(level + 1, offsets.after(loop, step), begin - start, std::min(inner, end - start));
      ++step;
    }
    const std::int64_t end_step = end / inner;
    if (step < end_step) add_steps(level, offsets.after(loop, step), end_step - step);
    if (end % inner != 0 && end_step >= step) {
      add_range(level + 1, offsets.after(loop, end_step), 0, end - end_step * inner);
    }
  }

  // `count` whole steps of the loop at `level`; a run has room for two loops above the innermost.
  void add_steps(std::size_t level, Offsets offsets, std::int64_t count) {
    if (loops_.size() - level <= 3) {
      add_run(offsets, level, count);
      return;
    }
    for (std::int64_t step = 0; step < count; ++step) {
      add_steps(level + 1, offsets.after(loops_[level], step), loops_[level + 1].count);
    }
  }

  void add_run(Offsets offsets, std::size_t level, std::int64_t count) {
    Run run;
    run.part = program_.parts.size() - 1;
    run.source = offsets.source;
    run.target = offsets.target;
    run.wire = wire_ % chunk_bytes_;
    const std::size_t depth = loops_.size() - level;
    run.length = depth == 1 ? count : loops_.back().count;
    if (depth >= 2) {
      const Loop& row = loops_[loops_.size() - 2];
      run.rows = depth == 2 ? count : row.count;
      run.source_row = row.source;
      run.target_row = row.target;
    }
    if (depth == 3) {
      run.planes = count;
      run.source_plane = loops_[level].source;
      run.target_plane = loops_[level].target;
    }
    append(run);
  }

  void append(const Run& run) {
    Chunk& chunk = program_.chunks[static_cast<std::size_t>(wire_ / chunk_bytes_)];
    wire_ += run.elements() * wire_item_;
    if (chunk.end_run == 0) {
      chunk.first_run = program_.runs.size();
    } else if (continues(program_.runs.back(), run)) {
      program_.runs.back().length += run.length;
      return;
    }
    program_.runs.push_back(run);
    chunk.end_run = program_.runs.size();
  }

  bool continues(const Run& last, const Run& next) const {
    return last.part == next.part && last.rows * last.planes == 1 && next.rows * next.planes == 1 &&
           last.source + last.length * source_item_ == next.source &&
           last.target + last.length * target_item_ == next.target;
  }

  std::int64_t chunk_bytes_;
  Program program_;
  // Of the part and box being added.
  std::int64_t wire_ = 0;  // where the next run goes
  std::int64_t wire_item_ = 1;
  std::int64_t source_item_ = 0;
  std::int64_t target_item_ = 0;
  std::vector<Loop> loops_;
  std::vector<std::int64_t> inner_;  // elements in one step of each loop
};

}  // namespace

Shape contiguous_strides(const Shape& local_shape) {
  Shape strides(local_shape.size(), 1);
  for (std::size_t dim = local_shape.size(); dim-- > 1;) {
    strides[dim - 1] = strides[dim] * std::max<std::int64_t>(1, local_shape[dim]);
  }
  return strides;
}

Program compile(const Stream& stream, const Strides* source, const Strides* target) {
  Compiler compiler(stream);
  for (const Part& part : stream.parts) {
    compiler.add(
        part,
        distances_of(source, part.source_tensor, part.source_shape, part.types.source, "source"),
        distances_of(target, part.target_tensor, part.target_shape, part.types.target, "target"));
  }
  return std::move(compiler).finish();
}

}  // namespace tensorbus::plan
