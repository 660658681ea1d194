#include "push_pull/request/pack.h"

#include <algorithm>
#include <cstring>

#include "copy/grid.h"

namespace tensorbus::push_pull {
namespace {

using Extents = std::span<const std::int64_t>;

std::size_t count(Extents shape) noexcept {
  std::size_t elements = 1;
  for (const std::int64_t extent : shape) elements *= static_cast<std::size_t>(extent);
  return elements;
}

// `dense` and the tensor hold the same elements. The last two dimensions go in one move.
template <bool packs>
void copy_strided(const TensorView& tensor, Extents shape, Extents strides, std::byte* at,
                  std::byte* dense) {
  const std::size_t item = item_bytes(tensor.dtype);
  if (shape.size() > 2) {
    const auto step = static_cast<std::ptrdiff_t>(item) * strides[0];
    const auto dense_step = static_cast<std::ptrdiff_t>(item * count(shape.subspan(1)));
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      copy_strided<packs>(tensor, shape.subspan(1), strides.subspan(1), at + i * step,
                          dense + i * dense_step);
    }
    return;
  }
  const auto extent = [&](std::size_t from_end) {
    return shape.size() > from_end ? shape[shape.size() - 1 - from_end] : 1;
  };
  const auto stride = [&](std::size_t from_end) {
    return strides.size() > from_end ? strides[strides.size() - 1 - from_end] : 1;
  };
  const auto bytes = static_cast<std::ptrdiff_t>(item);
  copy::Grid grid;
  copy::Pitch strided;
  copy::Pitch packed;
  if (stride(0) == 1) {
    grid.length = static_cast<std::size_t>(extent(0));
    grid.rows = static_cast<std::size_t>(extent(1));
    strided.row = bytes * stride(1);
    packed.row = bytes * extent(0);
  } else {
    grid.length = 1;
    grid.rows = static_cast<std::size_t>(extent(0));
    grid.planes = static_cast<std::size_t>(extent(1));
    strided = {bytes * stride(0), bytes * stride(1)};
    packed = {bytes, bytes * extent(0)};
  }
  grid.from = packs ? strided : packed;
  grid.to = packs ? packed : strided;
  grid = copy::merged(grid, {item, item});
  copy::move(grid, tensor.dtype, packs ? at : dense, tensor.dtype, packs ? dense : at,
             copy::Caches::keep);
}

}  // namespace

void pack(const TensorView& tensor, const Measure& measured, std::byte* to) {
  if (measured.bytes == 0) return;
  if (measured.dense) {
    std::memcpy(to, tensor.data, measured.bytes);
  } else {
    copy_strided<true>(tensor, tensor.shape, tensor.strides, tensor.data, to);
  }
}

void unpack(const std::byte* from, const TensorView& tensor) {
  const auto [bytes, dense] = measure(tensor);
  if (bytes == 0) return;
  if (dense) {
    std::memcpy(tensor.data, from, bytes);
  } else {
    copy_strided<false>(tensor, tensor.shape, tensor.strides, tensor.data,
                        const_cast<std::byte*>(from));
  }
}

}  // namespace tensorbus::push_pull
