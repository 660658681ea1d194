// Loops over items whose size the compiler knows.
#pragma once

#include <cstddef>
#include <type_traits>

namespace tensorbus::delta {

// Calls work(size) with 1, 2, 4, 8 or 16 as a constant.
template <typename Work>
decltype(auto) with_item_size(std::size_t bytes, const Work& work) {
  switch (bytes) {
    case 1:
      return work(std::integral_constant<std::size_t, 1>{});
    case 2:
      return work(std::integral_constant<std::size_t, 2>{});
    case 4:
      return work(std::integral_constant<std::size_t, 4>{});
    case 8:
      return work(std::integral_constant<std::size_t, 8>{});
    default:
      return work(std::integral_constant<std::size_t, 16>{});
  }
}

}  // namespace tensorbus::delta
