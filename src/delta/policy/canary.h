// Samples of a reader's tensors, hashed when a version is complete and again before the next patch
// is applied: whether somebody has written to them in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tensor/view.h"

namespace tensorbus::delta {

inline constexpr std::int64_t canary_pages = 16;
inline constexpr std::int64_t canary_page_bytes = 4096;

// Of 16 pages of the tensor, one somewhere in each sixteenth of the tensor, or of all of the tensor
// if that is not more. `salt` says where: with another salt for each version all elements are
// looked at in time. Elements are hashed in their order, whatever the strides; what lies between
// elements does not count.
std::uint64_t canary(const TensorView& tensor, std::uint64_t salt);

std::vector<std::uint64_t> canaries(std::span<const TensorView> tensors, std::uint64_t salt);

// The first tensor that is not as it was when its canary was taken with this salt. Error if there
// are not as many tensors as before.
std::optional<std::size_t> first_changed(std::span<const TensorView> tensors,
                                         std::span<const std::uint64_t> before, std::uint64_t salt);

}  // namespace tensorbus::delta
