#include "delta/policy/canary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "delta/testing/tensors.h"
#include "tensorbus/status.h"

namespace tensorbus::delta {
namespace {

TEST(Canary, AnyByteOfASmallTensorCounts) {
  plan::RandomCase random(1);
  TestTensor tensor(Dtype::bfloat16, {50, 30});
  tensor.fill(random);
  const std::uint64_t before = canary(tensor.view(), 1);
  for (std::size_t at = 0; at < tensor.bytes.size(); at += 7) {
    tensor.bytes[at] ^= std::byte{1};
    EXPECT_NE(canary(tensor.view(), 1), before) << at;
    tensor.bytes[at] ^= std::byte{1};
  }
  EXPECT_EQ(canary(tensor.view(), 1), before);
}

TEST(Canary, WhatLiesBetweenTheElementsDoesNotCount) {
  TestTensor dense(Dtype::float32, {4, 600, 3});
  plan::RandomCase random(1);
  dense.fill(random);
  TestTensor strided(Dtype::float32, {4, 600, 3}, {1, 20, 6});
  for (std::int64_t i = 0; i < dense.elements(); ++i) {
    const std::int64_t at = i / 1800 + i / 3 % 600 * 20 + i % 3 * 6;
    std::copy_n(dense.bytes.data() + 4 * i, 4, strided.bytes.data() + 4 * at);
  }
  const std::uint64_t before = canary(strided.view(), 5);
  EXPECT_EQ(before, canary(dense.view(), 5));
  strided.bytes[4 * 5] ^= std::byte{1};  // after the fourth of the first dimension
  EXPECT_EQ(canary(strided.view(), 5), before);
  strided.bytes[4 * 6] ^= std::byte{1};
  EXPECT_NE(canary(strided.view(), 5), before);
}

TEST(Canary, OverTheSaltsAllOfALargeTensorIsLookedAt) {
  plan::RandomCase random(1);
  TestTensor tensor(Dtype::bfloat16, {1 << 18});
  tensor.fill(random);
  std::set<std::uint64_t> salts;
  for (std::uint64_t salt = 0; salt < 200; ++salt) salts.insert(salt);
  // A sixteenth has 8 pages.
  for (std::size_t at = 0; at < tensor.bytes.size(); at += 40'009) {
    const auto found = [&](std::uint64_t salt) {
      const std::uint64_t before = canary(tensor.view(), salt);
      tensor.bytes[at] ^= std::byte{1};
      const bool differs = canary(tensor.view(), salt) != before;
      tensor.bytes[at] ^= std::byte{1};
      return differs;
    };
    EXPECT_TRUE(std::ranges::any_of(salts, found)) << at;
  }
}

TEST(Canary, TheFirstTensorThatWasWrittenToIsNamed) {
  std::vector<TestTensor> tensors = {
      {Dtype::float32, {10}}, {Dtype::int8, {0, 3}}, {Dtype::complex128, {}}, {Dtype::int64, {7}}};
  std::vector<TensorView> views;
  for (const TestTensor& tensor : tensors) views.push_back(tensor.view());
  const std::vector<std::uint64_t> before = canaries(views, 9);
  EXPECT_EQ(first_changed(views, before, 9), std::nullopt);
  tensors[3].bytes[8] = tensors[2].bytes[15] = std::byte{0};
  EXPECT_EQ(first_changed(views, before, 9), 2U);
  EXPECT_THROW(first_changed(std::span(views).first(3), before, 9), Error);
}

}  // namespace
}  // namespace tensorbus::delta
