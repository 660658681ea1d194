#include "device/cuda/copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace tensorbus::device::cuda {
namespace {

constexpr std::size_t longest = 0x7fffffff;

// What the driver is documented to do.
void run(const Memcpy2D& copy) {
  for (std::size_t row = 0; row < copy.height; ++row) {
    std::memcpy(reinterpret_cast<void*>(copy.dst_device + row * copy.dst_pitch),
                reinterpret_cast<const void*>(copy.src_device + row * copy.src_pitch), copy.width);
  }
}

void run_plainly(const Block& block) {
  for (std::int64_t plane = 0; plane < block.planes; ++plane) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
      std::memcpy(block.to + plane * block.to_pitch.plane + row * block.to_pitch.row,
                  block.from + plane * block.from_pitch.plane + row * block.from_pitch.row,
                  block.bytes);
    }
  }
}

struct Case {
  const char* name;
  std::size_t bytes;
  std::int64_t rows;
  std::int64_t planes;
  Pitch from;
  Pitch to;
  std::size_t copies;
  std::size_t longest = cuda::longest;
};

class Copies : public testing::TestWithParam<Case> {};

TEST_P(Copies, MoveWhatTheBlockSaysInAsFewCallsAsTheDriverAllows) {
  const Case& given = GetParam();
  constexpr std::size_t size = 4096;
  std::vector<std::byte> from(size);
  for (std::size_t i = 0; i < size; ++i) from[i] = static_cast<std::byte>(i * 131 >> 3);
  std::vector<std::byte> expected(size);
  std::vector<std::byte> got(size);
  Block block{from.data() + 1024,
              expected.data() + 1024,
              given.bytes,
              given.rows,
              given.planes,
              given.from,
              given.to};
  run_plainly(block);
  block.to = got.data() + 1024;
  const auto copies = copies_of(block, given.longest);
  EXPECT_EQ(copies.size(), given.copies);
  for (const Memcpy2D& copy : copies) {
    EXPECT_TRUE(copy.height == 1 || (copy.src_pitch >= copy.width && copy.dst_pitch >= copy.width));
    EXPECT_TRUE(copy.height == 1 || std::max(copy.src_pitch, copy.dst_pitch) <= given.longest);
    run(copy);
  }
  EXPECT_EQ(got, expected);
}

INSTANTIATE_TEST_SUITE_P(Blocks, Copies,
                         testing::Values(Case{"Plain", 100, 1, 1, {}, {}, 1},
                                         Case{"Nothing", 0, 3, 3, {8, 24}, {8, 24}, 0},
                                         Case{"NoRows", 8, 0, 3, {8, 24}, {8, 24}, 0},
                                         Case{"Rows", 16, 5, 1, {32, 0}, {16, 0}, 1},
                                         Case{"PlanesLikeRows", 16, 5, 3, {32, 160}, {16, 80}, 1},
                                         Case{"PlanesApart", 16, 5, 3, {32, 200}, {16, 80}, 3},
                                         Case{"OneRowAPlane", 16, 1, 6, {0, 48}, {0, 16}, 1},
                                         Case{"Backwards", 8, 4, 2, {-16, 128}, {8, 32}, 8},
                                         Case{"OneRowForAll", 8, 4, 1, {0, 0}, {8, 0}, 4},
                                         Case{"TooLongARow", 100, 2, 1, {128, 0}, {100, 0}, 4, 64},
                                         Case{"TooLongAPitch", 8, 4, 2, {64, 256}, {8, 32}, 8, 63}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace tensorbus::device::cuda
