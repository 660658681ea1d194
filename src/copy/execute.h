// Runs programs: moves, converts and reduces the elements of a chunk, or of all chunks. No call
// allocates per run or keeps what it was given; none waits, but for the threads of its crew.
#pragma once

#include <cstddef>
#include <span>

#include "copy/crew.h"
#include "copy/simd.h"
#include "tensorbus/plan.h"

namespace tensorbus::copy {

// The first elements of the local tensors by position in the batch. Only those of the program's
// tensors are looked at.
using Sources = std::span<const std::byte* const>;
using Targets = std::span<std::byte* const>;

// Whether bytes that are moved together fit into the caches, where the next reader finds them.
Caches caches_for(std::int64_t bytes) noexcept;

// Both sides bound, source not reduced.
void copy_chunk(const plan::Program& program, const plan::Chunk& chunk, Sources from, Targets to,
                Caches caches = Caches::keep);

// Source bound: packs the chunk. For a reduction each member packs its own. `wire` holds at least
// chunk.wire_bytes and is 16-byte aligned or not.
void gather_chunk(const plan::Program& program, const plan::Chunk& chunk, Sources from,
                  std::span<std::byte> wire);

// Target bound, source not reduced: unpacks what gather_chunk packed.
void scatter_chunk(const plan::Program& program, const plan::Chunk& chunk,
                   std::span<const std::byte> wire, Targets to, Caches caches = Caches::keep);

// Both sides bound, every member with the strides of the program: reads each member once. `members`
// are in the order of program.source.ranks.
void reduce_chunk(const plan::Program& program, const plan::Chunk& chunk,
                  std::span<const Sources> members, Targets to, Caches caches = Caches::keep);

// Target bound: reduces what each member's gather_chunk packed.
void reduce_packed_chunk(const plan::Program& program, const plan::Chunk& chunk,
                         std::span<const std::span<const std::byte>> wires, Targets to,
                         Caches caches = Caches::keep);

// All chunks: a copy has one member. The threads of a crew take whole chunks, so that every element
// is written by one thread and reduced in one order, however many there are.
void execute(const plan::Program& program, std::span<const Sources> members, Targets to);
void execute(const plan::Program& program, std::span<const Sources> members, Targets to,
             Crew& crew);

}  // namespace tensorbus::copy
