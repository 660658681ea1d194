#include "bus/client/shelf_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "delta/change/diff.h"

namespace tensorbus::bus {
namespace {

constexpr std::size_t alignment = 64;

std::size_t bytes_of(const TensorForm& form) {
  const std::size_t bytes =
      item_bytes(form.dtype) * static_cast<std::size_t>(element_count(form.shape));
  return (bytes + alignment - 1) / alignment * alignment;
}

fabric::Forms words_for(const fabric::Forms& forms) {
  fabric::Forms words;
  for (const TensorForm& form : forms) {
    words.push_back({Dtype::int64, {delta::Bitmap::words_for(element_count(form.shape))}, {1}});
  }
  return words;
}

}  // namespace

Dtype shelf_dtype(Dtype own, std::optional<Dtype> wanted) noexcept {
  const bool narrows = wanted && is_floating_point(own) && is_floating_point(*wanted) &&
                       item_bytes(*wanted) < item_bytes(own);
  return narrows ? *wanted : own;
}

ShelfMemory::ShelfMemory(fabric::Forms forms, std::size_t keep, bool delta, fabric::Pool& pool)
    : forms_(std::move(forms)), keep_(keep) {
  if (delta) words_ = words_for(forms_);
  std::size_t total = 0;
  for (const TensorForm& form : forms_) total += keep * bytes_of(form);
  for (const TensorForm& form : words_) total += bytes_of(form);
  std::byte* at = nullptr;
  if (total > 0) {
    fabric::Pool maker({.segment_bytes = alignment});
    const std::shared_ptr<std::byte> made = maker.allocate(total);
    const fabric::Place place = maker.find(made.get(), total).value();
    segment_ = pool.adopt(maker.lend(place.segment));
    at = segment_.get() + place.offset;
    slots_ = {at, total};
  }
  const auto place = [&](const fabric::Forms& all) {
    for (const TensorForm& form : all) {
      const std::size_t bytes = bytes_of(form);
      tensors_.push_back({bytes == 0 ? nullptr : at, form.dtype, form.shape, form.strides});
      at += bytes;
    }
  };
  for (std::size_t slot = 0; slot < keep; ++slot) place(forms_);
  place(words_);
}

void ShelfMemory::fill(std::size_t slot, std::optional<std::size_t> previous,
                       std::span<const TensorView> from, copy::Crew& crew,
                       device::Copiers& copiers, Deadline deadline) {
  if (previous) return compare(slot, *previous, from, crew);
  pin_for(from, copiers);
  copies_.run(from, tensors_of(slot), crew, copiers, deadline);
}

void ShelfMemory::compare(std::size_t slot, std::size_t previous, std::span<const TensorView> from,
                          copy::Crew& crew) {
  if (changes_.empty()) {
    for (const TensorForm& form : forms_) changes_.emplace_back(element_count(form.shape));
  }
  std::vector<delta::Comparison> all;
  for (std::size_t i = 0; i < from.size(); ++i) {
    all.push_back({from[i], tensors_of(slot)[i], tensors_of(previous)[i].data, &changes_[i]});
  }
  delta::diff_each(all, crew);
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    const auto words = changes_[i].words();
    if (!words.empty()) std::memcpy(tensors_of(keep_)[i].data, words.data(), words.size_bytes());
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

}  // namespace tensorbus::bus
