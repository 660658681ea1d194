#include "push_pull/request/device_items.h"

#include "device/core/open_copies.h"
#include "fabric/core/region.h"
#include "push_pull/request/pack.h"
#include "tensorbus/plan.h"

namespace tensorbus::push_pull {
namespace {

// Between two tensors of one form.
std::vector<device::Block> blocks_of(const TensorView& from, const TensorView& to) {
  const fabric::Forms source{fabric::form_of(from)};
  const fabric::Forms target{fabric::form_of(to)};
  const Dtype types[] = {to.dtype};
  const plan::Strides source_strides = fabric::strides_of(source);
  const plan::Strides target_strides = fabric::strides_of(target);
  const plan::Program program =
      plan::compile(fabric::whole_stream(source, types), &source_strides, &target_strides);
  std::vector<device::Block> blocks;
  for (const plan::Run& run : program.runs) {
    device::Block block;
    block.from = from.data + run.source;
    block.to = to.data + run.target;
    block.bytes = static_cast<std::size_t>(run.length) * item_bytes(to.dtype);
    block.rows = run.rows;
    block.planes = run.planes;
    block.from_pitch = {run.source_row, run.source_plane};
    block.to_pitch = {run.target_row, run.target_plane};
    blocks.push_back(block);
  }
  return blocks;
}

[[noreturn]] void give_up() {
  throw Error(Code::timeout, "a device has not copied its tensors in time");
}

bool is_moved(const Item& item) { return item.tensor.on_device() && !item.tensor.empty(); }

}  // namespace

DeviceItems::Stand DeviceItems::stand_for(std::span<const Item> items) {
  Stand stand;
  for (const Item& item : items) {
    stand.items.push_back(item);
    if (!item.tensor.on_device()) continue;
    TensorView& view = stand.items.back().tensor;
    view.device = host_memory;
    if (item.tensor.empty()) continue;
    const Shape shape(item.tensor.shape.begin(), item.tensor.shape.end());
    stand.strides.push_back(std::make_unique<Shape>(plan::contiguous_strides(shape)));
    stand.memory.push_back(copiers_.of({item.tensor.device}).scratch(bytes_of(item.tensor)));
    view.strides = *stand.strides.back();
    view.data = stand.memory.back().get();
  }
  return stand;
}

DeviceItems::Stand DeviceItems::of_pushes(std::span<const Item> pushes, Deadline deadline) {
  Stand stand = stand_for(pushes);
  device::OpenCopies copies;
  for (std::size_t i = 0; i < pushes.size(); ++i) {
    if (!is_moved(pushes[i])) continue;
    copies.add(copiers_.of({pushes[i].tensor.device})
                   .queue()
                   .copy(blocks_of(pushes[i].tensor, stand.items[i].tensor)));
  }
  if (!copies.wait(deadline)) give_up();
  return stand;
}

std::shared_ptr<const DeviceItems::Stand> DeviceItems::of_pulls(std::span<const Item> pulls) {
  return std::make_shared<const Stand>(stand_for(pulls));
}

void DeviceItems::keep(Handler first, std::span<const Item> pulls,
                       std::shared_ptr<const Stand> stand) {
  Kept kept;
  for (std::size_t i = 0; i < pulls.size(); ++i) {
    if (!is_moved(pulls[i])) continue;
    kept.copiers.push_back(&copiers_.of({pulls[i].tensor.device}));
    kept.blocks.push_back(blocks_of(stand->items[i].tensor, pulls[i].tensor));
  }
  kept.stand = std::move(stand);
  const Lock lock(mutex_);
  open_.insert_or_assign(first, std::move(kept));
  kept_ = open_.size();
}

void DeviceItems::forget(Handler first) {
  const Lock lock(mutex_);
  open_.erase(first);
  kept_ = open_.size();
}

void DeviceItems::store(Handler first, Deadline deadline) {
  Kept kept;
  {
    const Lock lock(mutex_);
    const auto found = open_.find(first);
    if (found == open_.end()) return;  // another thread has waited for the same, and stores it
    kept = std::move(found->second);
    open_.erase(found);
    kept_ = open_.size();
  }
  device::OpenCopies copies;
  for (std::size_t i = 0; i < kept.blocks.size(); ++i) {
    copies.add(kept.copiers[i]->queue().copy(std::move(kept.blocks[i])));
  }
  if (!copies.wait(deadline)) give_up();
}

}  // namespace tensorbus::push_pull
