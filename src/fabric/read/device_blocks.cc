#include "fabric/read/device_blocks.h"

#include <algorithm>

namespace tensorbus::fabric {
namespace {

// Shorter rows are better gathered by the host's kernels.
constexpr std::int64_t shortest_row_of_device = 64;

}  // namespace

std::unique_ptr<const DeviceBlocks> DeviceBlocks::of(std::shared_ptr<const plan::Program> program,
                                                     plan::BoundSide side,
                                                     const TensorMemory& memory) {
  if (!memory.on_device() || program->source.reduces()) return nullptr;
  std::unique_ptr<DeviceBlocks> made(new DeviceBlocks(std::move(program), side, memory.first));
  const bool all = std::ranges::all_of(
      made->program_->runs, [&](const plan::Run& run) { return made->can_copy(run, memory); });
  return all && made->copier_ != nullptr ? std::move(made) : nullptr;
}

std::size_t DeviceBlocks::tensor_of(const plan::Run& run) const {
  const plan::ProgramPart& part = program_->parts[run.part];
  return side_ == plan::BoundSide::source ? part.source_tensor : part.target_tensor;
}

bool DeviceBlocks::can_copy(const plan::Run& run, const TensorMemory& memory) {
  const plan::ProgramPart& part = program_->parts[run.part];
  if (part.source != part.wire || part.target != part.wire) return false;
  device::Copier* const copier = memory.copiers[tensor_of(run)];
  if (copier_ == nullptr) copier_ = copier;
  const auto row = run.length * static_cast<std::int64_t>(item_bytes(part.wire));
  const bool is_long = row >= shortest_row_of_device || run.rows * run.planes == 1;
  return copier != nullptr && copier == copier_ && is_long;
}

std::vector<device::Block> DeviceBlocks::of_chunk(std::size_t chunk, std::byte* wire) const {
  std::vector<device::Block> blocks;
  const bool of_source = side_ == plan::BoundSide::source;
  for (const plan::Run& run : program_->runs_of(program_->chunks[chunk])) {
    const auto item = static_cast<std::int64_t>(item_bytes(program_->parts[run.part].wire));
    const std::int64_t row = run.length * item;
    std::byte* const tensor = first_[tensor_of(run)] + (of_source ? run.source : run.target);
    const device::Pitch here = of_source ? device::Pitch{run.source_row, run.source_plane}
                                         : device::Pitch{run.target_row, run.target_plane};
    const device::Pitch there{row, row * run.rows};
    device::Block block;
    block.from = of_source ? tensor : wire + run.wire;
    block.to = of_source ? wire + run.wire : tensor;
    block.from_pitch = of_source ? here : there;
    block.to_pitch = of_source ? there : here;
    block.bytes = static_cast<std::size_t>(row);
    block.rows = run.rows;
    block.planes = run.planes;
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace tensorbus::fabric
