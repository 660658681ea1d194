// For the tests of deltas: tensors with memory of their own, filled with any bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "plan/testing/random_case.h"
#include "tensor/view.h"
#include "tensorbus/plan.h"

namespace tensorbus::delta {

struct TestTensor {
  TestTensor(Dtype its_dtype, Shape its_shape)
      : TestTensor(its_dtype, its_shape, plan::contiguous_strides(its_shape)) {}
  TestTensor(Dtype its_dtype, Shape its_shape, Shape its_strides)
      : dtype(its_dtype), shape(std::move(its_shape)), strides(std::move(its_strides)) {
    std::int64_t last = 0;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) last += (shape[dim] - 1) * strides[dim];
    const auto extent = static_cast<std::size_t>(elements() == 0 ? 0 : last + 1);
    bytes.assign(extent * item_bytes(dtype), std::byte{0xA5});
  }

  std::int64_t elements() const { return element_count(shape); }
  // Writable: views are borrowed from tensors that are not constant.
  TensorView view() const { return {const_cast<std::byte*>(bytes.data()), dtype, shape, strides}; }

  void fill(plan::RandomCase& random) {
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      const std::uint64_t word = any_word(random);
      std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
    }
  }

  // Makes another version: the elements change nowhere, here and there, in a stretch, or
  // everywhere. Some go back to what they were before.
  void change(plan::RandomCase& random) {
    const auto items = static_cast<std::int64_t>(bytes.size() / item_bytes(dtype));
    if (items == 0) return;
    switch (random.below(5)) {
      case 0:
        return;
      case 1:
        return change_each(random, 0, items, 1 + random.below(1000));
      case 2:
        return change_each(random, 0, items, 1 + random.below(20));
      case 3: {
        const std::int64_t first = random.below(items);
        return change_each(random, first, first + random.below(items - first) + 1, 1);
      }
      default:
        return change_each(random, 0, items, 1);
    }
  }

  Dtype dtype;
  Shape shape;
  Shape strides;
  std::vector<std::byte> bytes;

 private:
  // Any bits, or signed zeros, NaNs and infinities of the types that weights have.
  static std::uint64_t any_word(plan::RandomCase& random) {
    constexpr std::uint64_t likely[] = {0, 0x8000'0000'8000'8000, 0x7FC0'0000'7FC0'7FC1,
                                        0x7F80'0000'FF80'7C00};
    const auto bits = static_cast<std::uint64_t>(random.below(INT64_MAX));
    return bits % 4 == 0 ? likely[bits / 4 % 4] : bits << 1 ^ bits >> 40;
  }

  void change_each(plan::RandomCase& random, std::int64_t first, std::int64_t end,
                   std::int64_t every) {
    const std::size_t item = item_bytes(dtype);
    for (std::int64_t at = first + random.below(every); at < end;
         at += every == 1 ? 1 : 1 + random.below(2 * every)) {
      const std::uint64_t words[] = {any_word(random), any_word(random)};
      std::memcpy(bytes.data() + static_cast<std::size_t>(at) * item, words, item);
    }
  }
};

}  // namespace tensorbus::delta
