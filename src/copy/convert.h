// One element from one type to another, bit for bit as torch's vectorised tensor.to(dtype) does it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>

#include "copy/small_float.h"
#include "tensorbus/dtype.h"

namespace tensorbus::copy {

// Any byte but 0 is true, so that memory from elsewhere cannot be an invalid bool.
struct Bool {
  std::uint8_t byte;
};

// The types that convert, in the order of Dtype.
using Elements = std::tuple<double, float, Float16, Bfloat16, Float8E4m3, Float8E5m2, std::int8_t,
                            std::int16_t, std::int32_t, std::int64_t, std::uint8_t, Bool>;
template <std::size_t index>
using Element = std::tuple_element_t<index, Elements>;
constexpr std::size_t type_count = std::tuple_size_v<Elements>;
static_assert(static_cast<std::size_t>(Dtype::bool_) + 1 == type_count);

// Elements may lie anywhere: wire buffers mix types.
template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

template <typename T>
concept SmallFloatingPoint = requires(T value) {
  value.widen();
};

// The value in a type that C++ calculates with.
template <typename T>
constexpr auto arithmetic(T value) {
  if constexpr (SmallFloatingPoint<T>) {
    return value.widen();
  } else if constexpr (std::is_same_v<T, Bool>) {
    return static_cast<std::uint8_t>(value.byte != 0);
  } else {
    return value;
  }
}

// Conversions that C++ leaves undefined: out of range saturates, NaN gives 0.
template <typename To, typename From>
constexpr To truncate(From value) {
  constexpr To lowest = std::numeric_limits<To>::lowest();
  constexpr To highest = std::numeric_limits<To>::max();
  if (value != value) return 0;
  if (value <= static_cast<From>(lowest)) return lowest;
  // For wide integers the highest rounds up to a power of two, the first value out of range.
  if (value >= static_cast<From>(highest)) return highest;
  return static_cast<To>(value);
}

template <typename To, typename From>
constexpr To convert(From from) {
  const auto value = arithmetic(from);
  using Value = decltype(arithmetic(from));
  if constexpr (std::is_same_v<To, From>) {
    return from;
  } else if constexpr (std::is_same_v<To, Bool>) {
    return Bool{static_cast<std::uint8_t>(value != Value{0})};
  } else if constexpr (std::is_same_v<To, Bfloat16>) {
    constexpr auto nan =
        SmallFloatingPoint<From> ? Bfloat16::nan_of_small_floats : Bfloat16::nan_of_wide_floats;
    return Bfloat16::round(static_cast<float>(value), nan);
  } else if constexpr (SmallFloatingPoint<To>) {
    // Rounds twice from float64 and wide integers, as torch does.
    return To::round(static_cast<float>(value));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<Value>) {
    return truncate<To>(value);
  } else {
    return static_cast<To>(value);  // integers wrap
  }
}

}  // namespace tensorbus::copy
