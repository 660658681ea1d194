#include "delta/change/diff.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/refuse.h"
#include "copy/cast.h"
#include "copy/execute.h"
#include "copy/prefetch.h"
#include "delta/change/compare.h"
#include "tensorbus/plan.h"

namespace tensorbus::delta {
namespace {

using copy::Caches;

// What one thread does at a time. No two pieces share a word of bits.
constexpr std::size_t piece_elements = std::size_t{64} << 10;
constexpr std::int64_t gathered_bytes = std::int64_t{64} << 10;
static_assert(gathered_bytes / std::int64_t{copy::largest_copied_item} % Bitmap::word_bits == 0);

// Elements side by side, from the first of a word of bits on.
struct Row {
  const std::byte* from;
  const std::byte* previous;
  std::byte* to;
  std::uint64_t* words;
  std::size_t count;
};

// Rows of one type to another. What is converted stays in the first cache until it is compared.
class RowDiff {
 public:
  RowDiff(Dtype from, Dtype to)
      : from_(from),
        to_(to),
        cast_(copy::cast_between(from, to).row),
        compare_(compare_items(item_bytes(to))) {}

  void run(Row row, Caches caches) const {
    if (from_ == to_) {
      return compare_(row.from, row.previous, row.to, row.words, row.count, caches);
    }
    std::array<std::byte, at_once * largest_converted> hot;
    while (row.count > 0) {
      const std::size_t count = std::min(row.count, at_once);
      ask_for_next(row.from + count * item_bytes(from_));
      cast_(row.from, hot.data(), count, Caches::keep);
      compare_(hot.data(), row.previous, row.to, row.words, count, caches);
      row = after(row, count);
    }
  }

  Row after(const Row& row, std::size_t count) const {
    const std::size_t bytes = count * item_bytes(to_);
    return {row.from + count * item_bytes(from_), row.previous + bytes, row.to + bytes,
            row.words + count / std::size_t{Bitmap::word_bits}, row.count - count};
  }

 private:
  static constexpr std::size_t at_once = 512;
  static constexpr std::size_t largest_converted = 8;
  static constexpr std::size_t line_bytes = 64;

  // The conversion and the comparison take turns at memory: each finds its lines on their way.
  void ask_for_next(const std::byte* next) const {
    for (std::size_t at = 0; at < at_once * item_bytes(from_); at += line_bytes) {
      prefetch_to_read(next + at);
    }
  }

  Dtype from_;
  Dtype to_;
  copy::CastRow cast_;
  CompareRow compare_;
};

Shape shape_of(const TensorView& view) { return {view.shape.begin(), view.shape.end()}; }

bool is_dense(const TensorView& view) {
  return std::ranges::equal(view.strides, plan::contiguous_strides(shape_of(view)));
}

void check(const Comparison& each) {
  if (!std::ranges::equal(each.from.shape, each.to.shape)) {
    refuse("a version of shape " + to_string(shape_of(each.from)) + " has a place of shape " +
           to_string(shape_of(each.to)));
  }
  if (each.to.read_only) refuse("a version's place is read-only");
  if (!is_dense(each.to)) refuse("a version's place is not dense");
  if (!castable(each.from.dtype, each.to.dtype)) {
    refuse(std::string(to_string(each.from.dtype)) + " does not convert to " +
           std::string(to_string(each.to.dtype)));
  }
  if (each.changes == nullptr || each.changes->size() != element_count(shape_of(each.to))) {
    refuse("a bitmap does not fit a tensor of shape " + to_string(shape_of(each.to)));
  }
  if (each.previous == nullptr && !each.to.empty()) refuse("there is no version to compare with");
}

Row whole_row(const Comparison& each) {
  return {each.from.data, each.previous, each.to.data, each.changes->words().data(),
          static_cast<std::size_t>(each.changes->size())};
}

struct Piece {
  const RowDiff* diff;
  Row row;
};

void append_pieces(const RowDiff& diff, Row rest, std::vector<Piece>& pieces) {
  while (rest.count > 0) {
    const std::size_t count = std::min(rest.count, piece_elements);
    Row row = rest;
    row.count = count;
    pieces.push_back({&diff, row});
    rest = diff.after(rest, count);
  }
}

void run(const Piece& piece, Caches caches) {
  piece.diff->run(piece.row, caches);
  if (caches == Caches::bypass) copy::simd::fence();
}

// How elements that do not lie side by side are gathered: into as many chunks as fit the caches, in
// the order of a dense tensor.
plan::Program gathering(const Comparison& each) {
  const Layout one(Mesh({1}), {Replicate{}});
  const plan::Plan plan =
      plan::make(one, one, shape_of(each.from), {each.from.dtype, each.to.dtype});
  const auto streams = plan::read_streams({&plan, 1}, 0, gathered_bytes);
  const plan::Strides strides = {{each.from.strides.begin(), each.from.strides.end()}};
  return plan::compile(streams.front(), &strides, nullptr);
}

void diff_strided(const Comparison& each, Caches caches, copy::Crew& crew) {
  if (each.to.empty()) return;
  const plan::Program program = gathering(each);
  const Dtype wire = program.parts.front().wire;
  const RowDiff diff(wire, each.to.dtype);
  const auto in_chunk = static_cast<std::size_t>(gathered_bytes) / item_bytes(wire);
  const std::byte* const first[] = {each.from.data};
  crew.run(program.chunks.size(), [&](std::size_t at) {
    const plan::Chunk& chunk = program.chunks[at];
    std::array<std::byte, std::size_t{gathered_bytes}> gathered;
    copy::gather_chunk(program, chunk, first, gathered);
    Row row = diff.after(whole_row(each), at * in_chunk);
    row.from = gathered.data();
    row.count = static_cast<std::size_t>(chunk.wire_bytes) / item_bytes(wire);
    run({&diff, row}, caches);
  });
}

std::int64_t bytes_of(std::span<const Comparison> all) {
  std::int64_t bytes = 0;
  for (const Comparison& each : all) {
    bytes += each.changes->size() * static_cast<std::int64_t>(item_bytes(each.to.dtype));
  }
  return bytes;
}

}  // namespace

void diff_each(std::span<const Comparison> all, copy::Crew& crew) {
  for (const Comparison& each : all) check(each);
  const Caches caches = copy::caches_for(bytes_of(all));
  std::vector<RowDiff> diffs;
  diffs.reserve(all.size());  // pieces point to them
  std::vector<Piece> pieces;
  for (const Comparison& each : all) {
    if (is_dense(each.from)) {
      append_pieces(diffs.emplace_back(each.from.dtype, each.to.dtype), whole_row(each), pieces);
    } else {
      diff_strided(each, caches, crew);
    }
  }
  crew.run(pieces.size(), [&](std::size_t at) { run(pieces[at], caches); });
}

}  // namespace tensorbus::delta
