#include "bus/link/padding.h"

#include <algorithm>

#include "copy/redistribute.h"

namespace tensorbus::bus {

void fill_padding(const TensorView& box, const Shape& whole, const Shape& start, double pad) {
  const Shape still(box.shape.size(), 0);
  for (std::size_t dim = 0; dim < box.shape.size(); ++dim) {
    const std::int64_t inside = std::max<std::int64_t>(0, whole[dim] - start[dim]);
    if (inside >= box.shape[dim] || box.empty()) continue;
    Shape beyond(box.shape.begin(), box.shape.end());
    beyond[dim] -= inside;
    const auto skipped =
        inside * box.strides[dim] * static_cast<std::int64_t>(item_bytes(box.dtype));
    const TensorView target{box.data + skipped, box.dtype, beyond, box.strides};
    // One number for all elements.
    const TensorView source{reinterpret_cast<std::byte*>(&pad), Dtype::float64, beyond, still,
                            true};
    copy::copy_tensor(source, target);
  }
}

}  // namespace tensorbus::bus
