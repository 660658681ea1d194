#include "delta/patch/packed.h"

#include <algorithm>

#include "base/refuse.h"

namespace tensorbus::delta {

Packed::Packed(const plan::Program& program, plan::BoundSide side)
    : program_(program), side_(side) {
  if (program.source.reduces()) refuse("a program that reduces has no patches");
  for (const plan::ProgramPart& part : program.parts) {
    parts_.push_back({0, static_cast<std::uint32_t>(item_bytes(part.wire))});
  }
  begins_.reserve(program.runs.size());
  for (std::size_t run = 0; run < program.runs.size(); ++run) {
    const std::size_t part = program.runs[run].part;
    while (first_run_.size() <= part) first_run_.push_back(run);
    begins_.push_back(parts_[part].elements);
    parts_[part].elements += program.runs[run].elements();
  }
  first_run_.resize(parts_.size() + 1, program.runs.size());
}

std::size_t Packed::tensor(std::size_t part) const {
  return side_ == plan::BoundSide::source ? types(part).source_tensor : types(part).target_tensor;
}

Dtype Packed::dtype(std::size_t part) const {
  return side_ == plan::BoundSide::source ? types(part).source : types(part).target;
}

PackedRow Packed::row_of(std::size_t part, std::int64_t element) const {
  const auto first = begins_.begin() + static_cast<std::ptrdiff_t>(first_run_[part]);
  const auto end = begins_.begin() + static_cast<std::ptrdiff_t>(first_run_[part + 1]);
  const auto after = std::upper_bound(first, end, element);
  const auto run = static_cast<std::size_t>(after - begins_.begin()) - 1;
  return row_of_run(run, (element - begins_[run]) / program_.runs[run].length);
}

PackedRow Packed::row_of_run(std::size_t index, std::int64_t row) const {
  const plan::Run& run = program_.runs[index];
  const std::int64_t begin = begins_[index] + row * run.length;
  const std::int64_t plane = run.planes == 1 ? 0 : row / run.rows;
  const std::int64_t in_plane = row - plane * run.rows;
  const std::int64_t offset =
      side_ == plan::BoundSide::source
          ? run.source + plane * run.source_plane + in_plane * run.source_row
          : run.target + plane * run.target_plane + in_plane * run.target_row;
  return {begin, begin + run.length, offset};
}

}  // namespace tensorbus::delta
