// The element types of tensors, named as torch names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#pragma GCC visibility push(default)

namespace tensorbus {

// The first twelve convert into each other; the rest are only copied.
enum class Dtype : std::uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  int8,
  int16,
  int32,
  int64,
  uint8,
  bool_,
  uint16,
  uint32,
  uint64,
  complex32,
  complex64,
  complex128,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  float4_e2m1fn_x2,  // one element is a pair of 4-bit floats, as in torch's shapes
};

// Every type there is, in the order of the enumeration.
std::span<const Dtype> all_dtypes() noexcept;

std::string_view to_string(Dtype dtype) noexcept;

// A name with or without "torch.", or a short form (f32, fp32, bf16, i64, fp8e4m3, ...). An unknown
// one is an Error that lists the names.
Dtype parse_dtype(std::string_view name);

// Bits of one element: the number of elements times this, divided by 8, is the number of bytes.
constexpr std::size_t bits(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::complex128:
      return 128;
    case Dtype::float64:
    case Dtype::int64:
    case Dtype::uint64:
    case Dtype::complex64:
      return 64;
    case Dtype::float32:
    case Dtype::int32:
    case Dtype::uint32:
    case Dtype::complex32:
      return 32;
    case Dtype::float16:
    case Dtype::bfloat16:
    case Dtype::int16:
    case Dtype::uint16:
      return 16;
    default:
      return 8;
  }
}

// Every type fills whole bytes.
constexpr std::size_t item_bytes(Dtype dtype) noexcept { return bits(dtype) / 8; }

constexpr bool converts(Dtype dtype) noexcept { return dtype <= Dtype::bool_; }

constexpr bool castable(Dtype from, Dtype to) noexcept {
  return from == to || (converts(from) && converts(to));
}

constexpr bool is_floating_point(Dtype dtype) noexcept {
  return dtype <= Dtype::float8_e5m2 ||
         (dtype >= Dtype::float8_e4m3fnuz && dtype <= Dtype::float4_e2m1fn_x2);
}

}  // namespace tensorbus

#pragma GCC visibility pop
