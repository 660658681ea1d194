#include "delta/change/diff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "copy/redistribute.h"
#include "delta/testing/tensors.h"
#include "plan/testing/random_case.h"
#include "tensorbus/status.h"

namespace tensorbus::delta {
namespace {

// What diff_each must leave, by a copy and a look at each element.
struct Expected {
  Expected(const TestTensor& from, const TestTensor& previous)
      : to(previous), changes(to.elements()) {
    copy::copy_tensor(from.view(), to.view());
    const std::size_t item = item_bytes(to.dtype);
    for (std::int64_t i = 0; i < to.elements(); ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * item;
      if (std::memcmp(to.bytes.data() + at, previous.bytes.data() + at, item) != 0) changes.set(i);
    }
  }

  TestTensor to;
  Bitmap changes;
};

Dtype any_dtype(plan::RandomCase& random) {
  return all_dtypes()[static_cast<std::size_t>(random.below(std::ssize(all_dtypes())))];
}

Dtype any_castable_to(plan::RandomCase& random, Dtype from) {
  const Dtype other = any_dtype(random);
  return castable(from, other) ? other : from;
}

// Sizes around the pieces that threads share, and none.
Shape any_shape(plan::RandomCase& random) {
  if (random.below(8) > 0) return random.shape(4);
  return random.below(2) == 0 ? Shape{65'536 * random.below(3) + random.below(100)}
                              : Shape{random.below(300), 1 + random.below(300)};
}

TEST(Diff, EqualsACopyAndALookAtEachElement) {
  copy::Crew crew(2);
  for (unsigned seed = 0; seed < 400; ++seed) {
    plan::RandomCase random(seed);
    const Dtype from_type = any_dtype(random);
    const Dtype to_type = any_castable_to(random, from_type);
    const Shape shape = any_shape(random);
    TestTensor from(from_type, shape, random.strides(shape));
    from.fill(random);
    TestTensor previous(to_type, shape);
    copy::copy_tensor(from.view(), previous.view());
    from.change(random);
    const Expected expected(from, previous);
    TestTensor to(to_type, shape);
    Bitmap changes(to.elements());
    const Comparison comparison{from.view(), to.view(), previous.bytes.data(), &changes};
    diff_each({&comparison, 1}, crew);
    ASSERT_EQ(to.bytes, expected.to.bytes) << "seed " << seed;
    ASSERT_EQ(changes, expected.changes) << "seed " << seed;
    const Comparison in_place{from.view(), previous.view(), previous.bytes.data(), &changes};
    diff_each({&in_place, 1}, crew);
    ASSERT_EQ(previous.bytes, expected.to.bytes) << "in place, seed " << seed;
    ASSERT_EQ(changes, expected.changes) << "in place, seed " << seed;
  }
}

TEST(Diff, ManyTensorsBeyondTheCachesAreSharedByThreads) {
  plan::RandomCase random(1);
  std::vector<TestTensor> from;
  std::vector<TestTensor> previous;
  std::vector<TestTensor> to;
  Changes changes;
  for (const Shape& shape : {Shape{4'300'001}, Shape{0, 4}, Shape{300, 1001}, Shape{}}) {
    from.emplace_back(Dtype::float32, shape).fill(random);
    previous.emplace_back(Dtype::bfloat16, shape);
    copy::copy_tensor(from.back().view(), previous.back().view());
    from.back().change(random);
    to.emplace_back(Dtype::bfloat16, shape);
    changes.emplace_back(to.back().elements());
  }
  std::vector<Comparison> all;
  for (std::size_t i = 0; i < from.size(); ++i) {
    all.push_back({from[i].view(), to[i].view(), previous[i].bytes.data(), &changes[i]});
  }
  for (const std::size_t threads : {1, 3}) {
    copy::Crew crew(threads);
    diff_each(all, crew);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const Expected expected(from[i], previous[i]);
      EXPECT_TRUE(to[i].bytes == expected.to.bytes) << i << ", " << threads << " threads";
      EXPECT_TRUE(changes[i] == expected.changes) << i << ", " << threads << " threads";
    }
  }
}

TEST(Diff, WhatDoesNotFitIsRefusedBeforeAnythingIsWritten) {
  TestTensor from(Dtype::float32, {4, 6});
  TestTensor to(Dtype::bfloat16, {4, 6});
  TestTensor narrow(Dtype::bfloat16, {6, 4});
  TestTensor strided(Dtype::bfloat16, {4, 6}, {1, 4});
  TestTensor complex(Dtype::complex64, {4, 6});
  Bitmap changes(24);
  Bitmap few(23);
  const auto before = to.bytes;
  const std::byte* previous = to.bytes.data();
  TensorView read_only = to.view();
  read_only.read_only = true;
  const Comparison wrong[] = {{from.view(), narrow.view(), previous, &changes},
                              {from.view(), strided.view(), previous, &changes},
                              {from.view(), read_only, previous, &changes},
                              {complex.view(), to.view(), previous, &changes},
                              {from.view(), to.view(), previous, &few},
                              {from.view(), to.view(), previous, nullptr},
                              {from.view(), to.view(), nullptr, &changes}};
  copy::Crew alone;
  for (const Comparison& each : wrong) {
    const Comparison both[] = {{from.view(), to.view(), previous, &changes}, each};
    EXPECT_THROW(diff_each(both, alone), Error);
  }
  EXPECT_EQ(to.bytes, before);
}

}  // namespace
}  // namespace tensorbus::delta
