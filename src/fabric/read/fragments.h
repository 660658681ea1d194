// Programs cut for messages: what one message carries is a chunk of its own, so that the kernels
// gather straight into the message and scatter straight out of it. And cut for threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensorbus/plan.h"

namespace tensorbus::fabric {

// The same program with chunks of at most `longest` (a positive multiple of plan::part_alignment).
// Where the program is cut depends on the sizes of the chunks alone, so both sides of a stream cut
// alike whatever their strides. Chunks that carry nothing are left out.
plan::Program cut(const plan::Program& program, std::int64_t longest);

// The chunks of a program cut into pieces, for threads that work on one chunk together.
class ChunkPieces {
 public:
  explicit ChunkPieces(const plan::Program& program);

  struct Piece {
    std::size_t chunk = 0;  // of program()
    std::size_t begin = 0;  // the piece's first byte in the packed chunk of the whole program
    std::size_t bytes = 0;
  };
  const plan::Program& program() const noexcept { return program_; }
  // The pieces of a chunk of the whole program. A chunk that is soon done is one piece.
  std::span<const Piece> of(std::size_t chunk) const;

 private:
  plan::Program program_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> first_of_chunk_;  // in pieces_, and their end
};

}  // namespace tensorbus::fabric
