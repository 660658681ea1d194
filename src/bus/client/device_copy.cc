#include "bus/client/device_copy.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "copy/execute.h"
#include "fabric/read/staging.h"

namespace tensorbus::bus {
namespace {

// What a device does by itself, and the rest of the program.
struct Split {
  std::map<device::Id, std::vector<device::Block>> straight;
  plan::Program rest;
};

device::Block block_of(const plan::Run& run, std::size_t item, const TensorView& from,
                       const TensorView& to) {
  device::Block block;
  block.from = from.data + run.source;
  block.to = to.data + run.target;
  block.bytes = static_cast<std::size_t>(run.length) * item;
  block.rows = run.rows;
  block.planes = run.planes;
  block.from_pitch = {run.source_row, run.source_plane};
  block.to_pitch = {run.target_row, run.target_plane};
  return block;
}

Split split(const plan::Program& program, std::span<const TensorView> from,
            std::span<const TensorView> to) {
  Split split;
  split.rest = program;
  split.rest.runs.clear();
  for (plan::Chunk& chunk : split.rest.chunks) {
    const std::span<const plan::Run> runs = program.runs_of(chunk);
    chunk.first_run = split.rest.runs.size();
    for (const plan::Run& run : runs) {
      const plan::ProgramPart& part = program.parts[run.part];
      const TensorView& source = from[part.source_tensor];
      if (source.on_device() && part.source == part.target) {
        split.straight[{source.device}].push_back(
            block_of(run, item_bytes(part.source), source, to[part.target_tensor]));
      } else {
        split.rest.runs.push_back(run);
      }
    }
    chunk.end_run = split.rest.runs.size();
  }
  return split;
}

[[noreturn]] void give_up() {
  throw Error(Code::timeout, "a device has not copied its tensors in time");
}

void copy_rest(plan::Program program, std::span<const TensorView> from,
               std::span<const TensorView> to, device::Copiers& copiers, Deadline deadline) {
  fabric::Staging staging(program, plan::BoundSide::source,
                          fabric::memory_of(from, nullptr, &copiers));
  std::vector<std::byte*> targets;
  for (const TensorView& tensor : to) targets.push_back(tensor.data);
  const std::size_t count = program.chunks.size();
  std::size_t begun = 0;
  for (std::size_t chunk = 0; chunk < count; ++chunk) {
    for (; begun < std::min(count, chunk + staging.slots()); ++begun) staging.fetch(begun);
    if (!staging.wait_until_ready(chunk, deadline)) give_up();
    copy::copy_chunk(program, program.chunks[chunk], staging.sources(), targets);
  }
}

}  // namespace

void copy_from_devices(const plan::Program& program, std::span<const TensorView> from,
                       std::span<const TensorView> to, device::Copiers& copiers,
                       Deadline deadline) {
  Split split = bus::split(program, from, to);
  device::OpenCopies straight;
  for (auto& [id, blocks] : split.straight) {
    straight.add(copiers.of(id).queue().copy(std::move(blocks)));
  }
  copy_rest(std::move(split.rest), from, to, copiers, deadline);
  if (!straight.wait(deadline)) give_up();
}

}  // namespace tensorbus::bus
