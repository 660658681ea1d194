#include "copy/cast.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "copy/convert.h"
#include "tensorbus/status.h"

namespace tensorbus::copy {
namespace {

template <typename From, typename To>
void cast_steps(const std::byte* from, std::ptrdiff_t from_step, std::byte* to,
                std::ptrdiff_t to_step, std::size_t count) {
  for (; count > 0; --count, from += from_step, to += to_step) {
    store(to, convert<To>(load<From>(from)));
  }
}

template <typename From, typename To>
void cast_row(const std::byte* from, std::byte* to, std::size_t count, Caches) {
  for (std::size_t i = 0; i < count; ++i) {
    store(to + i * sizeof(To), convert<To>(load<From>(from + i * sizeof(From))));
  }
}

template <std::size_t bytes>
void copy_steps(const std::byte* from, std::ptrdiff_t from_step, std::byte* to,
                std::ptrdiff_t to_step, std::size_t count) {
  for (; count > 0; --count, from += from_step, to += to_step) std::memcpy(to, from, bytes);
}

template <std::size_t bytes>
void copy_row(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  if (caches == Caches::bypass) return simd::stream(from, to, count * bytes);
  std::memcpy(to, from, count * bytes);
}

template <std::size_t bytes>
constexpr Cast copy_of = {copy_steps<bytes>, copy_row<bytes>};

template <typename From, typename To>
constexpr Cast scalar_cast = {cast_steps<From, To>, cast_row<From, To>};

// Row by row: from the type of the row to the type of the column.
constexpr auto scalar_casts = []<std::size_t... pair>(std::index_sequence<pair...>) {
  return std::array{scalar_cast<Element<pair / type_count>, Element<pair % type_count>>...};
}
(std::make_index_sequence<type_count * type_count>());

constexpr std::size_t position(Dtype from, Dtype to) {
  return static_cast<std::size_t>(from) * type_count + static_cast<std::size_t>(to);
}

constexpr auto fastest_casts = [] {
  auto casts = scalar_casts;
  casts[position(Dtype::float32, Dtype::bfloat16)].row = simd::float32_to_bfloat16;
  casts[position(Dtype::bfloat16, Dtype::float32)].row = simd::bfloat16_to_float32;
  casts[position(Dtype::float32, Dtype::float16)].row = simd::float32_to_float16;
  casts[position(Dtype::float16, Dtype::float32)].row = simd::float16_to_float32;
  return casts;
}();

template <typename Table>
Cast look_up(const Table& casts, Dtype from, Dtype to) {
  if (from == to) return copy_of_size(item_bytes(from));
  if (!castable(from, to)) {
    throw Error(Code::invalid_argument, std::string(to_string(from)) + " does not convert to " +
                                            std::string(to_string(to)));
  }
  return casts[position(from, to)];
}

}  // namespace

Cast copy_of_size(std::size_t bytes) {
  switch (bytes) {
    case 1:
      return copy_of<1>;
    case 2:
      return copy_of<2>;
    case 4:
      return copy_of<4>;
    case 8:
      return copy_of<8>;
    default:
      return copy_of<16>;
  }
}

Cast cast_between(Dtype from, Dtype to) { return look_up(fastest_casts, from, to); }

Cast scalar_cast_between(Dtype from, Dtype to) { return look_up(scalar_casts, from, to); }

}  // namespace tensorbus::copy
