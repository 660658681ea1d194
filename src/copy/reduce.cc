#include "copy/reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "copy/cast.h"

namespace tensorbus::copy {
namespace {

// Two blocks of float fit into the first-level cache.
constexpr std::size_t block_elements = 2048;
constexpr std::size_t block_bytes = block_elements * sizeof(double);

// Rows of one plane that are reduced together, at most block_elements.
struct Block {
  std::size_t length;
  std::size_t rows;
  std::size_t elements() const { return length * rows; }
};

template <typename Value>
constexpr Dtype dtype_of() {
  if constexpr (std::is_same_v<Value, double>) return Dtype::float64;
  if constexpr (std::is_same_v<Value, float>) return Dtype::float32;
  return Dtype::int64;
}

template <typename Value>
std::byte* bytes_of(Value* values) {
  return reinterpret_cast<std::byte*>(values);
}
template <typename Value>
const std::byte* bytes_of(const Value* values) {
  return reinterpret_cast<const std::byte*>(values);
}

// Integers wrap.
template <typename Value>
using Wrapping = std::conditional_t<std::is_same_v<Value, std::int64_t>, std::uint64_t, Value>;

template <typename Value, typename Combine>
void fold_each(Value* result, const Value* next, std::size_t count, Combine combine) {
  for (std::size_t i = 0; i < count; ++i) result[i] = combine(result[i], next[i]);
}

template <typename Value>
void fold(ReduceOp op, Value* result, const Value* next, std::size_t count) {
  using W = Wrapping<Value>;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return fold_each(result, next, count, [](Value a, Value b) {
        return static_cast<Value>(static_cast<W>(a) + static_cast<W>(b));
      });
    case ReduceOp::product:
      return fold_each(result, next, count, [](Value a, Value b) {
        return static_cast<Value>(static_cast<W>(a) * static_cast<W>(b));
      });
    // A NaN wins, as in torch.maximum and torch.minimum; of equal values the first stays.
    case ReduceOp::max:
      return fold_each(result, next, count,
                       [](Value a, Value b) { return b > a || b != b ? b : a; });
    case ReduceOp::min:
      return fold_each(result, next, count,
                       [](Value a, Value b) { return b < a || b != b ? b : a; });
  }
}

// sum[i] += from[i], or null where there is no vectorised one.
using AddRow = void (*)(const std::byte* from, float* sum, std::size_t count);

AddRow add_row_of(Dtype dtype) {
  if (dtype == Dtype::float32) return simd::add_float32;
  if (dtype == Dtype::bfloat16) return simd::add_bfloat16;
  if (dtype == Dtype::float16) return simd::add_float16;
  return nullptr;
}

// Reduces one block after the other; `Value` is the accumulator's type.
template <typename Value>
class BlockReducer {
 public:
  BlockReducer(std::span<const plan::Fold> folds, std::byte* scratch, Dtype from_type,
               Dtype to_type, const Grid& grid, Caches caches)
      : folds_(folds),
        scratch_(scratch),
        widen_(cast_between(from_type, dtype_of<Value>())),
        narrow_(cast_between(dtype_of<Value>(), to_type)),
        add_row_(add_row_of(from_type)),
        from_row_(grid.from.row),
        to_row_(grid.to.row),
        caches_(caches) {}

  void reduce(Block block, std::span<const std::byte* const> from, std::ptrdiff_t offset,
              std::byte* to) {
    block_ = block;
    from_ = from;
    offset_ = offset;
    Value* result = scratch(folds_.size());
    evaluate(folds_.size(), 0, result);
    put(result, to);
  }

 private:
  // Blocks 0 up to the number of folds.
  Value* scratch(std::size_t level) {
    return reinterpret_cast<Value*>(scratch_ + level * block_bytes);
  }

  // Members [first, first + width of the level) reduced by the folds below `level`.
  void evaluate(std::size_t level, std::size_t first, Value* result) {
    if (level == 0) return get(from_[first] + offset_, result);
    const plan::Fold fold_here = folds_[level - 1];
    const std::size_t width = width_below(level - 1);
    const auto count = static_cast<std::size_t>(fold_here.count);
    evaluate(level - 1, first, result);
    for (std::size_t i = 1; i < count; ++i) {
      const std::size_t member = first + i * width;
      if (added(level - 1, fold_here.op, member, result)) continue;
      Value* next = scratch(level - 1);
      evaluate(level - 1, member, next);
      fold(fold_here.op, result, next, block_.elements());
    }
    if constexpr (std::is_floating_point_v<Value>) {
      if (fold_here.op == ReduceOp::avg) {
        const auto divisor = static_cast<Value>(count);
        for (std::size_t i = 0; i < block_.elements(); ++i) result[i] /= divisor;
      }
    }
  }

  // The fold of a member's own elements without a stop in scratch, for what is summed most.
  bool added(std::size_t level, ReduceOp op, std::size_t member, Value* result) const {
    if constexpr (std::is_same_v<Value, float>) {
      if (level > 0 || add_row_ == nullptr || block_.length == 1) return false;
      if (op != ReduceOp::sum && op != ReduceOp::avg) return false;
      const std::byte* from = from_[member] + offset_;
      for (std::size_t row = 0; row < block_.rows; ++row, from += from_row_) {
        add_row_(from, result + row * block_.length, block_.length);
      }
      return true;
    }
    return false;
  }

  std::size_t width_below(std::size_t level) const {
    std::size_t width = 1;
    for (const plan::Fold& below : folds_.first(level)) {
      width *= static_cast<std::size_t>(below.count);
    }
    return width;
  }

  void get(const std::byte* from, Value* values) const {
    if (block_.length == 1) {
      return widen_.steps(from, from_row_, bytes_of(values), sizeof(Value), block_.rows);
    }
    for (std::size_t row = 0; row < block_.rows; ++row) {
      widen_.row(from, bytes_of(values + row * block_.length), block_.length, Caches::keep);
      from += from_row_;
    }
  }

  void put(const Value* values, std::byte* to) const {
    if (block_.length == 1) {
      return narrow_.steps(bytes_of(values), sizeof(Value), to, to_row_, block_.rows);
    }
    for (std::size_t row = 0; row < block_.rows; ++row) {
      narrow_.row(bytes_of(values + row * block_.length), to, block_.length, caches_);
      to += to_row_;
    }
  }

  std::span<const plan::Fold> folds_;
  std::byte* scratch_;
  Cast widen_;
  Cast narrow_;
  AddRow add_row_;
  std::ptrdiff_t from_row_;
  std::ptrdiff_t to_row_;
  Caches caches_;
  Block block_{};
  std::span<const std::byte* const> from_;
  std::ptrdiff_t offset_ = 0;
};

// Calls visit(block, row, column, plane) for blocks that cover the grid.
template <typename Visit>
void for_each_block(const Grid& grid, Visit visit) {
  const std::size_t length = std::min(grid.length, block_elements);
  const std::size_t rows = block_elements / length;
  for (std::size_t plane = 0; plane < grid.planes; ++plane) {
    for (std::size_t row = 0; row < grid.rows; row += rows) {
      for (std::size_t column = 0; column < grid.length; column += length) {
        const Block block{std::min(length, grid.length - column), std::min(rows, grid.rows - row)};
        visit(block, plane, row, column);
      }
    }
  }
}

std::ptrdiff_t offset(Pitch pitch, std::size_t item, std::size_t plane, std::size_t row,
                      std::size_t column) {
  return static_cast<std::ptrdiff_t>(plane) * pitch.plane +
         static_cast<std::ptrdiff_t>(row) * pitch.row + static_cast<std::ptrdiff_t>(column * item);
}

}  // namespace

Dtype accumulator_of(Dtype dtype) noexcept {
  if (dtype == Dtype::float64) return Dtype::float64;
  return is_floating_point(dtype) ? Dtype::float32 : Dtype::int64;
}

Reduction::Reduction(std::span<const plan::Fold> folds)
    : folds_(folds), scratch_((folds.size() + 1) * block_bytes) {}

void Reduction::run(const Grid& grid, Dtype from_type, std::span<const std::byte* const> from,
                    Dtype to_type, std::byte* to, Caches caches) {
  const ItemBytes items{item_bytes(from_type), item_bytes(to_type)};
  const Grid whole = merged(grid, items);
  const auto reduce_in = [&]<typename Value>(Value) {
    BlockReducer<Value> reducer(folds_, scratch_.data(), from_type, to_type, whole,
                                caches_for_rows(whole.length * items.to, caches));
    for_each_block(whole, [&](Block block, std::size_t plane, std::size_t row, std::size_t column) {
      reducer.reduce(block, from, offset(whole.from, items.from, plane, row, column),
                     to + offset(whole.to, items.to, plane, row, column));
    });
  };
  switch (accumulator_of(from_type)) {
    case Dtype::float64:
      return reduce_in(double{});
    case Dtype::float32:
      return reduce_in(float{});
    default:
      return reduce_in(std::int64_t{});
  }
}

}  // namespace tensorbus::copy
