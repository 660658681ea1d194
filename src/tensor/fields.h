// The fields of layouts and tensors, for whoever writes, reads or prints them (see wire/field.h).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tensorbus/dtype.h"
#include "tensorbus/layout.h"
#include "tensorbus/tensor.h"

namespace tensorbus {

constexpr Dtype last_of(Dtype) { return Dtype::float4_e2m1fn_x2; }
constexpr ReduceOp last_of(ReduceOp) { return ReduceOp::product; }

constexpr std::array<std::string_view, 4> kinds_of(const Placement*) {
  return {"replicate", "shard", "strided shard", "partial"};
}
template <typename Archive>
void fields(Archive&, Replicate&) {}
template <typename Archive>
void fields(Archive& a, Shard& shard) {
  a("dim", shard.dim);
}
template <typename Archive>
void fields(Archive& a, StridedShard& shard) {
  a("dim", shard.dim);
  a.number("split_factor", shard.split_factor, 1, INT64_MAX);
}
template <typename Archive>
void fields(Archive& a, Partial& partial) {
  a("op", partial.op);
}

template <typename Archive>
void fields(Archive& a, TensorForm& form) {
  a("dtype", form.dtype);
  a("shape", form.shape);
  a("strides", form.strides);
}

}  // namespace tensorbus
