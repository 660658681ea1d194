#include "tensor/view.h"

#include <algorithm>

namespace tensorbus {

bool TensorView::empty() const noexcept { return std::ranges::count(shape, 0) > 0; }

bool repeats_itself(const TensorView& view) noexcept {
  if (view.empty()) return false;
  for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
    if (view.strides[dim] == 0 && view.shape[dim] > 1) return true;
  }
  return false;
}

TensorView no_tensor() noexcept {
  static constexpr std::int64_t nothing[] = {0};
  static constexpr std::int64_t stride[] = {1};
  return {nullptr, Dtype::uint8, nothing, stride};
}

}  // namespace tensorbus
