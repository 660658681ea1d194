// Left folds over the values of several ranks, block by block, so that every element is read from
// memory once and partial results stay in the first-level cache.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "copy/grid.h"
#include "tensorbus/plan.h"

namespace tensorbus::copy {

// float64 for float64, float32 for the other floats, int64 for integers and bool.
Dtype accumulator_of(Dtype dtype) noexcept;

class Reduction {
 public:
  // Borrows the folds.
  explicit Reduction(std::span<const plan::Fold> folds);

  // `from` has one first element per member; all members have the grid's pitch.
  void run(const Grid& grid, Dtype from_type, std::span<const std::byte* const> from, Dtype to_type,
           std::byte* to, Caches caches);

 private:
  std::span<const plan::Fold> folds_;
  std::vector<std::byte> scratch_;  // one block per fold, and the result
};

}  // namespace tensorbus::copy
