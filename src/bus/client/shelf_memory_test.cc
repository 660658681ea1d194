#include "bus/client/shelf_memory.h"

#include <gtest/gtest.h>

#include <cstring>

#include "device/cuda/device.h"

namespace tensorbus::bus {
namespace {

// proves: L1.2
TEST(ShelfMemoryTest, TypesAreNarrowedAndNeverWidened) {
  EXPECT_EQ(shelf_dtype(Dtype::float32, Dtype::bfloat16), Dtype::bfloat16);
  EXPECT_EQ(shelf_dtype(Dtype::float64, Dtype::float16), Dtype::float16);
  EXPECT_EQ(shelf_dtype(Dtype::float16, Dtype::bfloat16), Dtype::float16) << "not narrower";
  EXPECT_EQ(shelf_dtype(Dtype::bfloat16, Dtype::float32), Dtype::bfloat16);
  EXPECT_EQ(shelf_dtype(Dtype::int64, Dtype::bfloat16), Dtype::int64);
  EXPECT_EQ(shelf_dtype(Dtype::float32, Dtype::int8), Dtype::float32);
  EXPECT_EQ(shelf_dtype(Dtype::float32, std::nullopt), Dtype::float32);
}

// proves: L1.2
TEST(ShelfMemoryTest, AVersionOfTheNarrowerTypeTakesHalfTheMemory) {
  constexpr std::size_t count = 1000;
  const Shape shape{count};
  const Shape strides{1};
  fabric::Pool pool;
  ShelfMemory shelf({{Dtype::bfloat16, shape, strides}}, 2, pool);
  ASSERT_EQ(shelf.tensors().size(), 2u);
  const auto apart = shelf.tensors()[1].data - shelf.tensors()[0].data;
  EXPECT_LE(apart, 2 * 1000 + 64);
  std::vector<float> values(count, 1.01171875F);
  const TensorView from{reinterpret_cast<std::byte*>(values.data()), Dtype::float32, shape,
                        strides};
  copy::Crew alone;
  device::Copiers no_devices(&device::cuda::open);
  shelf.fill(1, {&from, 1}, alone, no_devices, Deadline::never());
  std::vector<std::uint16_t> bits(count);
  std::memcpy(bits.data(), shelf.tensors()[1].data, 2 * count);
  EXPECT_EQ(bits, std::vector<std::uint16_t>(count, 0x3f82)) << "rounded to even";
}

}  // namespace
}  // namespace tensorbus::bus
