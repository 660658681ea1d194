#include "copy/execute.h"

#include <string>
#include <vector>

#include "copy/grid.h"
#include "copy/reduce.h"
#include "tensorbus/status.h"

namespace tensorbus::copy {
namespace {

using plan::Chunk;
using plan::Program;
using plan::ProgramPart;
using plan::Run;

Pitch source_pitch(const Run& run) { return {run.source_row, run.source_plane}; }

Pitch target_pitch(const Run& run) { return {run.target_row, run.target_plane}; }

Pitch wire_pitch(const Run& run, Dtype wire) {
  const auto row = run.length * static_cast<std::int64_t>(item_bytes(wire));
  return {row, row * run.rows};
}

Grid grid_of(const Run& run, Pitch from, Pitch to) {
  return {static_cast<std::size_t>(run.length), static_cast<std::size_t>(run.rows),
          static_cast<std::size_t>(run.planes), from, to};
}

void check_wire(const Chunk& chunk, std::size_t bytes) {
  if (bytes >= static_cast<std::size_t>(chunk.wire_bytes)) return;
  throw Error(Code::invalid_argument, "a buffer of " + std::to_string(bytes) +
                                          " bytes for a chunk of " +
                                          std::to_string(chunk.wire_bytes));
}

void check_members(const Program& program, std::size_t members) {
  if (members == program.source.ranks.size()) return;
  throw Error(Code::invalid_argument, "a program for " +
                                          std::to_string(program.source.ranks.size()) +
                                          " sources was given " + std::to_string(members));
}

void fence_after(Caches caches) {
  if (caches == Caches::bypass) simd::fence();
}

}  // namespace

Caches caches_for(std::int64_t bytes) noexcept {
  constexpr std::int64_t most_kept = std::int64_t{8} << 20;
  return bytes > most_kept ? Caches::bypass : Caches::keep;
}

void copy_chunk(const Program& program, const Chunk& chunk, Sources from, Targets to,
                Caches caches) {
  for (const Run& run : program.runs_of(chunk)) {
    const ProgramPart& part = program.parts[run.part];
    move(grid_of(run, source_pitch(run), target_pitch(run)), part.source,
         from[part.source_tensor] + run.source, part.target, to[part.target_tensor] + run.target,
         caches);
  }
  fence_after(caches);
}

void gather_chunk(const Program& program, const Chunk& chunk, Sources from,
                  std::span<std::byte> wire) {
  check_wire(chunk, wire.size());
  for (const Run& run : program.runs_of(chunk)) {
    const ProgramPart& part = program.parts[run.part];
    move(grid_of(run, source_pitch(run), wire_pitch(run, part.wire)), part.source,
         from[part.source_tensor] + run.source, part.wire, wire.data() + run.wire, Caches::keep);
  }
}

void scatter_chunk(const Program& program, const Chunk& chunk, std::span<const std::byte> wire,
                   Targets to, Caches caches) {
  check_wire(chunk, wire.size());
  for (const Run& run : program.runs_of(chunk)) {
    const ProgramPart& part = program.parts[run.part];
    move(grid_of(run, wire_pitch(run, part.wire), target_pitch(run)), part.wire,
         wire.data() + run.wire, part.target, to[part.target_tensor] + run.target, caches);
  }
  fence_after(caches);
}

void reduce_chunk(const Program& program, const Chunk& chunk, std::span<const Sources> members,
                  Targets to, Caches caches) {
  check_members(program, members.size());
  std::vector<const std::byte*> first(members.size());
  Reduction reduction(program.source.folds);
  for (const Run& run : program.runs_of(chunk)) {
    const ProgramPart& part = program.parts[run.part];
    for (std::size_t i = 0; i < first.size(); ++i) {
      first[i] = members[i][part.source_tensor] + run.source;
    }
    reduction.run(grid_of(run, source_pitch(run), target_pitch(run)), part.source, first,
                  part.target, to[part.target_tensor] + run.target, caches);
  }
  fence_after(caches);
}

void reduce_packed_chunk(const Program& program, const Chunk& chunk,
                         std::span<const std::span<const std::byte>> wires, Targets to,
                         Caches caches) {
  check_members(program, wires.size());
  for (const std::span<const std::byte> wire : wires) check_wire(chunk, wire.size());
  std::vector<const std::byte*> first(wires.size());
  Reduction reduction(program.source.folds);
  for (const Run& run : program.runs_of(chunk)) {
    const ProgramPart& part = program.parts[run.part];
    for (std::size_t i = 0; i < first.size(); ++i) first[i] = wires[i].data() + run.wire;
    reduction.run(grid_of(run, wire_pitch(run, part.wire), target_pitch(run)), part.wire, first,
                  part.target, to[part.target_tensor] + run.target, caches);
  }
  fence_after(caches);
}

void execute(const Program& program, std::span<const Sources> members, Targets to) {
  Crew alone;
  execute(program, members, to, alone);
}

void execute(const Program& program, std::span<const Sources> members, Targets to, Crew& crew) {
  check_members(program, members.size());
  std::int64_t bytes = 0;
  for (const Chunk& chunk : program.chunks) bytes += chunk.wire_bytes;
  const Caches caches = caches_for(bytes);
  crew.run(program.chunks.size(), [&](std::size_t at) {
    const Chunk& chunk = program.chunks[at];
    if (program.source.reduces()) {
      reduce_chunk(program, chunk, members, to, caches);
    } else {
      copy_chunk(program, chunk, members.front(), to, caches);
    }
  });
}

}  // namespace tensorbus::copy
