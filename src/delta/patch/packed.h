// The packed order of a program: in which parts their elements follow each other, and where each
// lies in memory. Patches count elements in this order, which both ends of a stream know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/bound_side.h"
#include "tensorbus/plan.h"

namespace tensorbus::delta {

// What a patch must agree with its reader about.
struct PackedPart {
  std::int64_t elements = 0;
  std::uint32_t item_bytes = 0;  // of the wire's type

  friend bool operator==(const PackedPart&, const PackedPart&) = default;
};

// Elements side by side on the bound side. Positions count the elements of the part.
struct PackedRow {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;  // of the first one, in bytes from the tensor's first element
};

// The program is borrowed and not copied, because a program can be large.
class Packed {
 public:
  // Error if the program reduces: nobody knows what has changed in a sum before it is made.
  Packed(const plan::Program& program, plan::BoundSide side);

  std::span<const PackedPart> parts() const noexcept { return parts_; }
  const plan::ProgramPart& types(std::size_t part) const { return program_.parts[part]; }
  // The part's tensor, among those of the bound side.
  std::size_t tensor(std::size_t part) const;
  Dtype dtype(std::size_t part) const;

  // The row that has this element, which the part has.
  PackedRow row_of(std::size_t part, std::int64_t element) const;

  // Calls visit(row) for all rows of a part, in order.
  template <typename Visit>
  void for_each_row(std::size_t part, Visit visit) const {
    for (std::size_t run = first_run_[part]; run < first_run_[part + 1]; ++run) {
      const std::int64_t rows = program_.runs[run].rows * program_.runs[run].planes;
      for (std::int64_t row = 0; row < rows; ++row) visit(row_of_run(run, row));
    }
  }

 private:
  PackedRow row_of_run(std::size_t run, std::int64_t row) const;

  const plan::Program& program_;
  const plan::BoundSide side_;
  std::vector<PackedPart> parts_;
  std::vector<std::size_t> first_run_;  // of each part, and the end
  std::vector<std::int64_t> begins_;    // of each run, in its part
};

}  // namespace tensorbus::delta
