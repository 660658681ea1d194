#include "tensorbus/dtype.h"

#include <algorithm>
#include <array>
#include <string>

#include "tensorbus/status.h"

namespace tensorbus {
namespace {

struct Name {
  std::string_view name;
  Dtype dtype;
};

// One row per type, in the order of the enumeration.
constexpr std::array names = {
    Name{"float64", Dtype::float64},
    Name{"float32", Dtype::float32},
    Name{"float16", Dtype::float16},
    Name{"bfloat16", Dtype::bfloat16},
    Name{"float8_e4m3fn", Dtype::float8_e4m3fn},
    Name{"float8_e5m2", Dtype::float8_e5m2},
    Name{"int8", Dtype::int8},
    Name{"int16", Dtype::int16},
    Name{"int32", Dtype::int32},
    Name{"int64", Dtype::int64},
    Name{"uint8", Dtype::uint8},
    Name{"bool", Dtype::bool_},
    Name{"uint16", Dtype::uint16},
    Name{"uint32", Dtype::uint32},
    Name{"uint64", Dtype::uint64},
    Name{"complex32", Dtype::complex32},
    Name{"complex64", Dtype::complex64},
    Name{"complex128", Dtype::complex128},
    Name{"float8_e4m3fnuz", Dtype::float8_e4m3fnuz},
    Name{"float8_e5m2fnuz", Dtype::float8_e5m2fnuz},
    Name{"float8_e8m0fnu", Dtype::float8_e8m0fnu},
    Name{"float4_e2m1fn_x2", Dtype::float4_e2m1fn_x2},
};

constexpr std::array short_names = {
    Name{"f64", Dtype::float64},
    Name{"fp64", Dtype::float64},
    Name{"double", Dtype::float64},
    Name{"f32", Dtype::float32},
    Name{"fp32", Dtype::float32},
    Name{"float", Dtype::float32},
    Name{"f16", Dtype::float16},
    Name{"fp16", Dtype::float16},
    Name{"half", Dtype::float16},
    Name{"bf16", Dtype::bfloat16},
    Name{"fp8e4m3", Dtype::float8_e4m3fn},
    Name{"f8e4m3", Dtype::float8_e4m3fn},
    Name{"fp8_e4m3", Dtype::float8_e4m3fn},
    Name{"fp8e5m2", Dtype::float8_e5m2},
    Name{"f8e5m2", Dtype::float8_e5m2},
    Name{"fp8_e5m2", Dtype::float8_e5m2},
    Name{"fp4", Dtype::float4_e2m1fn_x2},
    Name{"i8", Dtype::int8},
    Name{"i16", Dtype::int16},
    Name{"short", Dtype::int16},
    Name{"i32", Dtype::int32},
    Name{"int", Dtype::int32},
    Name{"i64", Dtype::int64},
    Name{"long", Dtype::int64},
    Name{"u8", Dtype::uint8},
    Name{"u16", Dtype::uint16},
    Name{"u32", Dtype::uint32},
    Name{"u64", Dtype::uint64},
    Name{"chalf", Dtype::complex32},
    Name{"cfloat", Dtype::complex64},
    Name{"cdouble", Dtype::complex128},
};

constexpr auto dtypes = [] {
  std::array<Dtype, names.size()> all{};
  std::ranges::transform(names, all.begin(), &Name::dtype);
  return all;
}();

constexpr bool rows_follow_the_enumeration() {
  for (std::size_t row = 0; row < names.size(); ++row) {
    if (static_cast<std::size_t>(names[row].dtype) != row) return false;
  }
  return true;
}
static_assert(rows_follow_the_enumeration());

}  // namespace

std::span<const Dtype> all_dtypes() noexcept { return dtypes; }

std::string_view to_string(Dtype dtype) noexcept {
  return names[static_cast<std::size_t>(dtype)].name;
}

Dtype parse_dtype(std::string_view name) {
  constexpr std::string_view prefix = "torch.";
  const std::string_view bare = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  for (const std::span<const Name> table : {std::span<const Name>(names), {short_names}}) {
    const auto row = std::ranges::find(table, bare, &Name::name);
    if (row != table.end()) return row->dtype;
  }
  std::string known;
  for (const Name& row : names) known.append(known.empty() ? "" : ", ").append(row.name);
  throw Error(Code::invalid_argument,
              "unknown dtype \"" + std::string(name) + "\"; expected one of " + known);
}

}  // namespace tensorbus
