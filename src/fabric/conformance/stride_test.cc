// Tensors whose elements lie apart, on either side: what lies between them is neither read as data
// nor written.
#include <gtest/gtest.h>

#include <cstring>

#include "fabric/conformance/conformance.h"

namespace tensorbus::fabric {
namespace {

constexpr std::int64_t stride_rows = 70;
constexpr std::int64_t stride_columns = 30;

// Dense, with gaps small and large, transposed, backwards.
const Shape kinds_of_strides[] = {{30, 1}, {90, 2},   {640, 20}, {40, 1},
                                  {1, 70}, {-64, -2}, {1, 3000}};

double element(const TestTensor& tensor, std::int64_t row, std::int64_t column) {
  const std::int64_t at = row * tensor.form->strides[0] + column * tensor.form->strides[1];
  const auto item = static_cast<std::int64_t>(item_bytes(tensor.form->dtype));
  const std::byte* const from = tensor.memory.get() + tensor.first + at * item;
  if (tensor.form->dtype == Dtype::float64) {
    double value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  float value = 0;
  std::memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}

std::size_t changed_bytes(const TestTensor& tensor) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < tensor.bytes(); ++i) {
    if (tensor.memory.get()[i] != std::byte{0xEE}) ++count;
  }
  return count;
}

TEST_P(FabricTest, ElementsThatLieApartAreReadAndOnlyTheyAreWritten) {
  const auto peer = connect();
  const Shape shape{stride_rows, stride_columns};
  for (const Shape& from : kinds_of_strides) {
    const TestTensor tensor = new_tensor(Dtype::float32, shape, from);
    fill(tensor);
    const auto region = owner_->expose(views({tensor}));
    const Source source = attach(reader_, peer, *region);
    for (const Dtype type : {Dtype::float32, Dtype::float64}) {
      for (const Shape& to : {Shape{30, 1}, Shape{90, 2}, Shape{1, 70}}) {
        const TestTensor target = new_tensor(type, shape, to);
        std::memset(target.memory.get(), 0xEE, target.bytes());
        const Completion done = read(reader_, whole(source, {target}));
        ASSERT_TRUE(done.status.ok()) << done.status.message;
        for (std::int64_t row = 0; row < stride_rows; ++row) {
          for (std::int64_t column = 0; column < stride_columns; ++column) {
            ASSERT_EQ(element(target, row, column), element(tensor, row, column))
                << row << ", " << column << " of strides " << from[0] << ", " << from[1];
          }
        }
        // Small numbers have no byte like that.
        ASSERT_EQ(changed_bytes(target), item_bytes(type) * stride_rows * stride_columns);
      }
    }
  }
}

}  // namespace
}  // namespace tensorbus::fabric
