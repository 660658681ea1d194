#include "bus/client/shelf_memory.h"

#include <algorithm>
#include <utility>

namespace tensorbus::bus {
namespace {

constexpr std::size_t alignment = 64;

std::size_t bytes_of(const TensorForm& form) {
  const std::size_t bytes =
      item_bytes(form.dtype) * static_cast<std::size_t>(element_count(form.shape));
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

Dtype shelf_dtype(Dtype own, std::optional<Dtype> wanted) noexcept {
  const bool narrows = wanted && is_floating_point(own) && is_floating_point(*wanted) &&
                       item_bytes(*wanted) < item_bytes(own);
  return narrows ? *wanted : own;
}

ShelfMemory::ShelfMemory(fabric::Forms forms, std::size_t keep, fabric::Pool& pool)
    : forms_(std::move(forms)) {
  std::size_t total = 0;
  for (const TensorForm& form : forms_) total += keep * bytes_of(form);
  std::byte* at = nullptr;
  if (total > 0) {
    fabric::Pool maker({.segment_bytes = alignment});
    const std::shared_ptr<std::byte> made = maker.allocate(total);
    const fabric::Place place = maker.find(made.get(), total).value();
    segment_ = pool.adopt(maker.lend(place.segment));
    at = segment_.get() + place.offset;
    slots_ = {at, total};
  }
  for (std::size_t slot = 0; slot < keep; ++slot) {
    for (const TensorForm& form : forms_) {
      const std::size_t bytes = bytes_of(form);
      tensors_.push_back({bytes == 0 ? nullptr : at, form.dtype, form.shape, form.strides});
      at += bytes;
    }
  }
}

void ShelfMemory::pin_for(std::span<const TensorView> from, device::Copiers& copiers) {
  const auto found = std::ranges::find_if(from, &TensorView::on_device);
  if (found == from.end() || pin_ != nullptr || slots_.empty()) return;
  // Beside the budget of windows: a shelf is as large as it is.
  pin_ = copiers.of({found->device})
             .device()
             .pin({.bytes = slots_, .keeper = segment_, .in_budget = false});
}

void ShelfMemory::fill(std::size_t slot, std::span<const TensorView> from, copy::Crew& crew,
                       device::Copiers& copiers, Deadline deadline) {
  pin_for(from, copiers);
  copies_.run(from, std::span(tensors_).subspan(slot * forms_.size(), from.size()), crew, copiers,
              deadline);
}

}  // namespace tensorbus::bus
