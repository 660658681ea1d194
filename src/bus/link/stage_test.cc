#include "bus/link/stage.h"

#include <gtest/gtest.h>

#include <cstring>

#include "bus/link/padding.h"
#include "device/cuda/device.h"

namespace tensorbus::bus {
namespace {

const Shape square{2, 2};
const Shape dense{2, 1};
const Shape transposed{1, 2};

TensorView view_of(float* data, const Shape& strides) {
  return {reinterpret_cast<std::byte*>(data), Dtype::float32, square, strides};
}

std::vector<float> values_of(const TensorView& view) {
  std::vector<float> values(4);
  std::memcpy(values.data(), view.data, sizeof(float) * values.size());
  return values;
}

class StageTest : public testing::Test {
 protected:
  fabric::Pool pool;
  std::shared_ptr<std::byte> block = pool.allocate(sizeof(float) * 4);
  float* pooled = reinterpret_cast<float*>(block.get());
  std::vector<float> plain{1, 2, 3, 4};
  std::vector<TensorView> tensors{view_of(pooled, dense), view_of(plain.data(), transposed)};
};

TEST_F(StageTest, HasPlacesForWhatIsNotInThePool) {
  Stage stage(tensors, {}, pool);
  EXPECT_EQ(stage.indices(), std::vector<std::size_t>{1});
  copy::Crew alone;
  device::Copiers no_devices(&device::cuda::open);
  stage.fill(tensors, alone, no_devices, Deadline::never());
  const auto placed = stage.placed(tensors);
  EXPECT_EQ(placed[0].data, block.get());
  EXPECT_TRUE(pool.find(placed[1].data, 1));
  EXPECT_EQ(values_of(placed[1]), (std::vector<float>{1, 3, 2, 4})) << "dense";
}

TEST_F(StageTest, CastsIntoPlacesOfANarrowerType) {
  // Halfway between two numbers of bfloat16: the even one is taken.
  plain = {1.00390625F, 1.01171875F, -2, 3};
  const std::vector<Dtype> narrower{Dtype::bfloat16, Dtype::bfloat16};
  Stage stage(tensors, narrower, pool);
  EXPECT_TRUE(stage.can_be_narrowed(tensors));
  EXPECT_TRUE(stage.has(tensors, narrower, pool));
  EXPECT_FALSE(stage.has(tensors, {}, pool));
  copy::Crew alone;
  device::Copiers no_devices(&device::cuda::open);
  stage.fill(tensors, alone, no_devices, Deadline::never());
  const auto placed = stage.placed(tensors);
  EXPECT_EQ(placed[0].dtype, Dtype::float32) << "it is read where it is";
  ASSERT_EQ(placed[1].dtype, Dtype::bfloat16);
  std::vector<std::uint16_t> bits(4);
  std::memcpy(bits.data(), placed[1].data, 8);
  EXPECT_EQ(bits, (std::vector<std::uint16_t>{0x3f80, 0xc000, 0x3f82, 0x4040}));
  EXPECT_FALSE(stage.give(tensors[1])) << "a narrow place is not the tensor";
}

TEST_F(StageTest, OfANarrowerTypeIsOfNoUseToATensorInThePool) {
  const std::vector<Dtype> narrower{Dtype::float32, Dtype::float16};
  const Stage stage(tensors, narrower, pool);
  std::vector<TensorView> now = tensors;
  std::vector<float> other(4);
  now[1] = view_of(other.data(), dense);
  EXPECT_TRUE(stage.has(now, narrower, pool)) << "elsewhere, and still not in the pool";
  now[1] = view_of(pooled, dense);
  EXPECT_FALSE(stage.has(now, narrower, pool));
  EXPECT_EQ(outside_of(pool, now), (std::vector<bool>{false, false}));
  EXPECT_EQ(outside_of(pool, tensors), (std::vector<bool>{false, true}));
}

TEST_F(StageTest, GivesAPlaceToTheTensorThatItIsOfAndToNoOther) {
  Stage stage(tensors, {}, pool);
  EXPECT_FALSE(stage.give(view_of(plain.data(), dense)));
  EXPECT_FALSE(stage.give(tensors[0]));
  plain[0] = 9;
  const auto place = stage.give(tensors[1]);
  ASSERT_TRUE(place);
  EXPECT_EQ(values_of(place->view()), (std::vector<float>{9, 3, 2, 4}));
  EXPECT_EQ(stage.size(), 0u);
  EXPECT_FALSE(stage.give(tensors[1]));
}

TEST(PaddingTest, FillsWhatLiesBeyondTheWholeAndNothingElse) {
  std::vector<float> box(12, 1);
  const Shape shape{3, 4};
  const Shape strides{4, 1};
  // Two rows and three columns of the box lie inside.
  fill_padding({reinterpret_cast<std::byte*>(box.data()), Dtype::float32, shape, strides}, {5, 4},
               {3, 1}, -2);
  EXPECT_EQ(box, (std::vector<float>{1, 1, 1, -2, 1, 1, 1, -2, -2, -2, -2, -2}));
}

}  // namespace
}  // namespace tensorbus::bus
