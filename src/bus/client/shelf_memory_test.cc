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
  ShelfMemory shelf({{Dtype::bfloat16, shape, strides}}, 2, false, pool);
  ASSERT_EQ(shelf.tensors().size(), 2u);
  const auto apart = shelf.tensors()[1].data - shelf.tensors()[0].data;
  EXPECT_LE(apart, 2 * 1000 + 64);
  std::vector<float> values(count, 1.01171875F);
  const TensorView from{reinterpret_cast<std::byte*>(values.data()), Dtype::float32, shape,
                        strides};
  copy::Crew alone;
  device::Copiers no_devices(&device::cuda::open);
  shelf.fill(1, std::nullopt, {&from, 1}, alone, no_devices, Deadline::never());
  std::vector<std::uint16_t> bits(count);
  std::memcpy(bits.data(), shelf.tensors()[1].data, 2 * count);
  EXPECT_EQ(bits, std::vector<std::uint16_t>(count, 0x3f82)) << "rounded to even";
}

// proves: E1.2
TEST(ShelfMemoryTest, AVersionIsComparedWithTheOneBeforeInTheTypeOfTheShelf) {
  constexpr std::size_t count = 1000;
  const Shape shape{count};
  const Shape strides{1};
  fabric::Pool pool;
  ShelfMemory shelf({{Dtype::bfloat16, shape, strides}}, 2, true, pool);
  ASSERT_EQ(shelf.tensors().size(), 3u);
  std::vector<float> values(count, 1.0F);
  const TensorView from{reinterpret_cast<std::byte*>(values.data()), Dtype::float32, shape,
                        strides};
  copy::Crew alone;
  shelf.fill(0, std::nullopt, {&from, 1}, alone);
  values[3] = 1.5F;
  values[4] = 1.0F + 1e-6F;  // the same in bfloat16
  values[999] = -0.0F;
  shelf.fill(1, 0, {&from, 1}, alone);
  delta::Bitmap changed(count);
  std::memcpy(changed.words().data(), shelf.tensors()[2].data, changed.words().size_bytes());
  delta::Bitmap expected(count);
  expected.set(3);
  expected.set(999);
  EXPECT_EQ(changed, expected);
  const auto* written = reinterpret_cast<const std::uint16_t*>(shelf.tensors()[1].data);
  EXPECT_EQ(written[3], 0x3fc0);
  EXPECT_EQ(written[4], 0x3f80);
}

}  // namespace
}  // namespace tensorbus::bus
