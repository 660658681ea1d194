#include "fabric/read/fragments.h"

#include <algorithm>

#include "tensorbus/dtype.h"

namespace tensorbus::fabric {
namespace {

using plan::Chunk;
using plan::Program;
using plan::Run;

// A piece of a chunk that threads share: to copy it takes much longer than to hand it over.
constexpr std::int64_t longest_piece = std::int64_t{128} << 10;

// Takes elements [first, end) of a run, counted in packed order, as runs whose `wire` still counts
// from the start of the whole chunk.
class Slicer {
 public:
  Slicer(const Program& program, const Run& run)
      : run_(run),
        wire_item_(static_cast<std::int64_t>(item_bytes(program.parts[run.part].wire))),
        source_item_(static_cast<std::int64_t>(item_bytes(program.parts[run.part].source))),
        target_item_(static_cast<std::int64_t>(item_bytes(program.parts[run.part].target))) {}

  std::int64_t wire_item() const noexcept { return wire_item_; }

  // Rows that are cut, whole rows of planes that are cut, whole planes, and the same backwards.
  void append(std::int64_t first, std::int64_t end, std::vector<Run>& runs) const {
    const std::int64_t plane = run_.length * run_.rows;
    while (first < end) {
      const std::int64_t left = end - first;
      if (first % plane == 0 && left >= plane) {
        const std::int64_t planes = left / plane;
        emit(first, run_.length, run_.rows, planes, runs);
        first += planes * plane;
        continue;
      }
      const std::int64_t left_in_plane = std::min(left, plane - first % plane);
      if (first % run_.length == 0 && left_in_plane >= run_.length) {
        const std::int64_t rows = left_in_plane / run_.length;
        emit(first, run_.length, rows, 1, runs);
        first += rows * run_.length;
        continue;
      }
      const std::int64_t length = std::min(left, run_.length - first % run_.length);
      emit(first, length, 1, 1, runs);
      first += length;
    }
  }

 private:
  void emit(std::int64_t first, std::int64_t length, std::int64_t rows, std::int64_t planes,
            std::vector<Run>& runs) const {
    const std::int64_t column = first % run_.length;
    const std::int64_t row = first / run_.length % run_.rows;
    const std::int64_t plane = first / run_.length / run_.rows;
    Run slice = run_;
    slice.length = length;
    slice.rows = rows;
    slice.planes = planes;
    slice.wire += first * wire_item_;
    // The strides of a side that is not bound are 0 and its offsets mean nothing.
    slice.source += column * source_item_ + row * run_.source_row + plane * run_.source_plane;
    slice.target += column * target_item_ + row * run_.target_row + plane * run_.target_plane;
    runs.push_back(slice);
  }

  const Run& run_;
  std::int64_t wire_item_;
  std::int64_t source_item_;
  std::int64_t target_item_;
};

// Pieces as equal as can be: a short last one would cost as much as a full one.
std::int64_t piece_bytes(std::int64_t chunk_bytes, std::int64_t longest) {
  const std::int64_t pieces = (chunk_bytes + longest - 1) / longest;
  const std::int64_t even = (chunk_bytes + pieces - 1) / pieces;
  return (even + plan::part_alignment - 1) / plan::part_alignment * plan::part_alignment;
}

}  // namespace

Program cut(const Program& program, std::int64_t longest) {
  Program result;
  result.reader = program.reader;
  result.source = program.source;
  result.parts = program.parts;
  for (const Chunk& chunk : program.chunks) {
    if (chunk.wire_bytes == 0) continue;
    // Parts start at multiples of their alignment, so no element crosses such a cut.
    const std::int64_t step = piece_bytes(chunk.wire_bytes, longest);
    // Runs lie in the order of `wire`, so one that goes on after a cut is the next piece's first.
    std::size_t at = chunk.first_run;
    for (std::int64_t begin = 0; begin < chunk.wire_bytes; begin += step) {
      const std::int64_t end = std::min(begin + step, chunk.wire_bytes);
      Chunk piece{result.runs.size(), 0, end - begin};
      while (at < chunk.end_run) {
        const Run& run = program.runs[at];
        if (run.wire >= end) break;
        const Slicer slicer(program, run);
        const std::int64_t run_end = run.wire + run.elements() * slicer.wire_item();
        const std::size_t before = result.runs.size();
        slicer.append((std::max(begin, run.wire) - run.wire) / slicer.wire_item(),
                      (std::min(end, run_end) - run.wire) / slicer.wire_item(), result.runs);
        for (std::size_t i = before; i < result.runs.size(); ++i) result.runs[i].wire -= begin;
        if (run_end > end) break;
        ++at;
      }
      piece.end_run = result.runs.size();
      result.chunks.push_back(piece);
    }
  }
  return result;
}

ChunkPieces::ChunkPieces(const Program& program) : program_(cut(program, longest_piece)) {
  std::size_t next = 0;
  for (const Chunk& chunk : program.chunks) {
    first_of_chunk_.push_back(pieces_.size());
    for (std::int64_t begin = 0; begin < chunk.wire_bytes; ++next) {
      const std::int64_t bytes = program_.chunks[next].wire_bytes;
      pieces_.push_back({next, static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes)});
      begin += bytes;
    }
  }
  first_of_chunk_.push_back(pieces_.size());
}

std::span<const ChunkPieces::Piece> ChunkPieces::of(std::size_t chunk) const {
  const std::size_t first = first_of_chunk_[chunk];
  return std::span(pieces_).subspan(first, first_of_chunk_[chunk + 1] - first);
}

}  // namespace tensorbus::fabric
