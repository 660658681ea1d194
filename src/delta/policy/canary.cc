#include "delta/policy/canary.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/refuse.h"
#include "copy/cast.h"
#include "tensor/checked.h"

namespace tensorbus::delta {
namespace {

// Hashes elements of a tensor by their row-major position.
class Sampler {
 public:
  explicit Sampler(const TensorView& tensor)
      : tensor_(tensor),
        item_(static_cast<std::int64_t>(item_bytes(tensor.dtype))),
        copy_(copy::copy_of_size(item_bytes(tensor.dtype)).steps),
        state_(XXH3_createState(), [](XXH3_state_t* state) { XXH3_freeState(state); }) {
    XXH3_64bits_reset(state_.get());
  }

  // Row by row of the last dimension.
  void add(std::int64_t first, std::int64_t count) {
    while (count > 0) {
      const std::int64_t width = tensor_.shape.empty() ? 1 : tensor_.shape.back();
      const std::int64_t here = std::min({count, width - first % width, page_elements()});
      add_row(first, here);
      first += here;
      count -= here;
    }
  }

  std::int64_t page_elements() const { return canary_page_bytes / item_; }
  std::uint64_t hash() const { return XXH3_64bits_digest(state_.get()); }

 private:
  void add_row(std::int64_t first, std::int64_t count) {
    std::array<std::byte, canary_page_bytes> dense;
    const std::int64_t step = tensor_.strides.empty() ? item_ : tensor_.strides.back() * item_;
    copy_(address(first), step, dense.data(), item_, static_cast<std::size_t>(count));
    XXH3_64bits_update(state_.get(), dense.data(), static_cast<std::size_t>(count * item_));
  }

  const std::byte* address(std::int64_t position) const {
    std::int64_t offset = 0;
    for (std::size_t dim = tensor_.shape.size(); dim-- > 0;) {
      offset += position % tensor_.shape[dim] * tensor_.strides[dim];
      position /= tensor_.shape[dim];
    }
    return tensor_.data + offset * item_;
  }

  const TensorView& tensor_;
  const std::int64_t item_;
  const copy::CastSteps copy_;
  const std::unique_ptr<XXH3_state_t, void (*)(XXH3_state_t*)> state_;
};

// Which of `pages` is looked at in a sixteenth of the tensor.
std::int64_t chosen(std::uint64_t salt, std::int64_t sixteenth, std::int64_t pages) {
  const std::uint64_t number = XXH3_64bits_withSeed(&sixteenth, sizeof sixteenth, salt);
  return static_cast<std::int64_t>(number % static_cast<std::uint64_t>(pages));
}

}  // namespace

std::uint64_t canary(const TensorView& tensor, std::uint64_t salt) {
  Sampler sampler(tensor);
  if (tensor.empty()) return sampler.hash();
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) elements *= extent;
  const std::int64_t page = sampler.page_elements();
  if (elements <= canary_pages * page) {
    sampler.add(0, elements);
    return sampler.hash();
  }
  for (std::int64_t i = 0; i < canary_pages; ++i) {
    const std::int64_t begin = elements / canary_pages * i;
    const std::int64_t end = i + 1 == canary_pages ? elements : begin + elements / canary_pages;
    const std::int64_t number = chosen(salt, i, ceil_divide(end - begin, page));
    sampler.add(std::min(begin + number * page, end - page), page);
  }
  return sampler.hash();
}

std::vector<std::uint64_t> canaries(std::span<const TensorView> tensors, std::uint64_t salt) {
  std::vector<std::uint64_t> all;
  for (const TensorView& tensor : tensors) all.push_back(canary(tensor, salt));
  return all;
}

std::optional<std::size_t> first_changed(std::span<const TensorView> tensors,
                                         std::span<const std::uint64_t> before,
                                         std::uint64_t salt) {
  if (tensors.size() != before.size()) refuse("not as many tensors as canaries");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (canary(tensors[i], salt) != before[i]) return i;
  }
  return std::nullopt;
}

}  // namespace tensorbus::delta
