// Tensors on a device that takes its time: the chunks of a program begin, and are ready later.
#include "fabric/read/staging.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/testing/calls.h"
#include "device/fake/device.h"
#include "fabric/core/region.h"

namespace tensorbus::fabric {
namespace {

class StagingTest : public testing::Test {
 protected:
  static constexpr std::int64_t rows = 300;
  static constexpr std::int64_t columns = 1000;
  static constexpr std::size_t bytes = rows * columns * sizeof(float);

  // A matrix on the device whose rows are twice as far apart as they are long.
  TensorView matrix() {
    std::byte* const memory = device.allocate(2 * bytes);
    std::vector<float> values(2 * rows * columns);
    std::iota(values.begin(), values.end(), 0.F);
    std::memcpy(memory, values.data(), 2 * bytes);  // the fake's memory is the host's
    return {memory, Dtype::float32, shape, strides, false, false, 0};
  }
  plan::Stream stream() const {
    const Dtype types[] = {Dtype::float32};
    return whole_stream({{Dtype::float32, shape, strides}}, types, 1 << 16);
  }
  void work() {
    while (device.step()) {
    }
  }

  const Shape shape{rows, columns};
  const Shape strides{2 * columns, 1};
  device::FakeDevice device{{0}, 7};
  device::Copiers copiers{[this](device::Id) -> device::Device& { return device; }};
};

TEST_F(StagingTest, APackerHasItsChunksWhenTheDeviceHasCopiedThem) {
  const TensorView tensor = matrix();
  const plan::Strides own{strides};
  const plan::Stream whole = stream();
  Packer packer(plan::compile(whole, &own, nullptr), memory_of({&tensor, 1}, nullptr, &copiers));
  ASSERT_TRUE(packer.on_device());
  ASSERT_GE(packer.slots(), 2U);
  std::vector<std::byte> wire(static_cast<std::size_t>(whole.wire_bytes));
  std::size_t at = 0;
  for (std::size_t chunk = 0; chunk < packer.program().chunks.size(); ++chunk) {
    ASSERT_TRUE(packer.ready(chunk)) << "nothing was begun";
    packer.begin(chunk);
    ASSERT_FALSE(packer.ready(chunk));
    work();
    ASSERT_TRUE(packer.ready(chunk));
    packer.pack(chunk, std::span(wire).subspan(at));
    at += static_cast<std::size_t>(packer.program().chunks[chunk].wire_bytes);
  }
  const auto* found = reinterpret_cast<const float*>(wire.data());
  for (std::int64_t row = 0; row < rows; ++row) {
    ASSERT_EQ(found[row * columns], static_cast<float>(row * 2 * columns));
    ASSERT_EQ(found[row * columns + columns - 1],
              static_cast<float>(row * 2 * columns + columns - 1));
  }
}

TEST_F(StagingTest, TargetsAreWholeWhenAllIsFinished) {
  const TensorView tensor = matrix();
  std::memset(tensor.data, 0, 2 * bytes);
  const plan::Strides own{strides};
  const plan::Program program = plan::compile(stream(), nullptr, &own);
  TargetSide target(program, memory_of({&tensor, 1}, nullptr, &copiers));
  const std::vector<std::byte> wire(1 << 16, std::byte{0x3c});
  for (std::size_t chunk = 0; chunk < program.chunks.size(); ++chunk) {
    if (!target.ready(chunk)) work();
    ASSERT_TRUE(target.ready(chunk));
    copy::scatter_chunk(target.program(), target.program().chunks[chunk], wire, target.tensors());
    target.store(chunk);
  }
  EXPECT_FALSE(target.finished());
  EXPECT_FALSE(target.ended());
  work();
  EXPECT_TRUE(target.finished());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::byte* const first = tensor.data + row * 2 * columns * 4;
    ASSERT_EQ(first[0], std::byte{0x3c});
    ASSERT_EQ(first[columns * 4 - 1], std::byte{0x3c});
    ASSERT_EQ(first[columns * 4], std::byte{0}) << "between the rows";
  }
}

TEST_F(StagingTest, ADeviceThatDiesFailsWhatIsUnderWayAndLetsGoOfTheMemory) {
  const TensorView tensor = matrix();
  const plan::Strides own{strides};
  Packer packer(plan::compile(stream(), &own, nullptr), memory_of({&tensor, 1}, nullptr, &copiers));
  packer.begin(0);
  device.die({Code::failed, "the device is on fire"});
  EXPECT_EQ(code_of([&] { packer.ready(0); }), Code::failed);
  EXPECT_TRUE(packer.ready(0)) << "it is told once";
}

TEST_F(StagingTest, ATensorOnADeviceIsRefusedWhereNoneCanBeUsed) {
  const TensorView tensor = matrix();
  EXPECT_EQ(code_of([&] { memory_of({&tensor, 1}, nullptr); }), Code::unsupported);
}

}  // namespace
}  // namespace tensorbus::fabric
