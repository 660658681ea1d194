#include "bus/patching/held_state.h"

#include <algorithm>

#include "delta/policy/canary.h"

namespace tensorbus::bus {
namespace {

// Of all bytes one in so many is hashed at most, unless all samples are a moment's work.
constexpr std::int64_t sparseness = 256;
constexpr std::int64_t a_moment = std::int64_t{1} << 20;

std::int64_t bytes_of(const TensorView& tensor) {
  const auto item = static_cast<std::int64_t>(item_bytes(tensor.dtype));
  return item * element_count(Shape(tensor.shape.begin(), tensor.shape.end()));
}

std::vector<TensorView> chosen(std::span<const TensorView> tensors,
                               std::span<const std::size_t> positions) {
  std::vector<TensorView> chosen;
  for (const std::size_t at : positions) chosen.push_back(tensors[at]);
  return chosen;
}

}  // namespace

void Canaries::take(std::span<const TensorView> tensors, std::uint64_t salt) {
  std::int64_t all = 0;
  for (const TensorView& tensor : tensors) all += bytes_of(tensor);
  std::int64_t left = std::max(a_moment, all / sparseness);
  watched_.clear();
  for (std::size_t i = 0; i < tensors.size() && left > 0; ++i) {
    const std::size_t at = (i + static_cast<std::size_t>(salt) * 61) % tensors.size();
    if (tensors[at].empty()) continue;
    watched_.push_back(at);
    left -= std::min(bytes_of(tensors[at]), delta::canary_pages * delta::canary_page_bytes);
  }
  salt_ = salt;
  sums_ = delta::canaries(chosen(tensors, watched_), salt_);
}

std::optional<std::size_t> Canaries::first_changed(std::span<const TensorView> tensors) const {
  const auto changed = delta::first_changed(chosen(tensors, watched_), sums_, salt_);
  return changed ? std::optional(watched_[*changed]) : std::nullopt;
}

}  // namespace tensorbus::bus
