// Random histories: versions, readers at different bases, interrupted applications, late joiners;
// after every pull the reader's memory must equal that of a dense read, byte for byte, and so must
// what lies between the elements of strided tensors.
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "delta/testing/both_ends.h"

namespace tensorbus::delta {
namespace {

constexpr Dtype never_converted[] = {Dtype::uint16, Dtype::uint32, Dtype::complex64,
                                     Dtype::complex128, Dtype::float8_e4m3fnuz};

TestTypes any_types(plan::RandomCase& random) {
  if (random.below(6) == 0) {
    const Dtype dtype = never_converted[random.below(std::ssize(never_converted))];
    return {dtype, dtype, dtype};
  }
  if (random.below(3) == 0) return {Dtype::float32, Dtype::bfloat16, Dtype::bfloat16};
  const auto any = [&] { return all_dtypes()[static_cast<std::size_t>(random.below(12))]; };
  return {any(), any(), any()};
}

Shape any_shape(plan::RandomCase& random) {
  if (random.below(8) > 0) return random.shape(4);
  return {1 + random.below(100), 1 + random.below(200)};
}

// Any boxes at one to three ranks; some may overlap, some elements may be nobody's.
plan::Boxes any_boxes(plan::RandomCase& random, const Shape& shape) {
  plan::Boxes boxes;
  const std::int64_t ranks = 1 + random.below(3);
  for (Rank rank = 0; rank < ranks; ++rank) {
    for (std::int64_t left = 1 + random.below(3); left > 0; --left) {
      plan::Box& box = boxes[rank].emplace_back();
      for (const std::int64_t extent : shape) {
        box.start.push_back(random.below(extent + 1));
        box.shape.push_back(random.below(extent - box.start.back() + 1));
      }
    }
  }
  return boxes;
}

std::vector<TestSpread> any_parts(plan::RandomCase& random) {
  const Shape shape = any_shape(random);
  const plan::Spread from = any_boxes(random, shape);
  const plan::Spread to = random.below(2) == 0 ? plan::Spread(any_boxes(random, shape))
                                               : random.layout(shape.size(), false);
  return {spread_between(from, to, shape, any_types(random))};
}

// The placements may name any of the batch's dimensions, so all have as many.
std::vector<TestSpread> any_layouts(plan::RandomCase& random) {
  Shape shape = any_shape(random);
  const Layout from = random.layout(shape.size(), false);
  const Layout to = random.layout(shape.size(), false);
  std::vector<TestSpread> tensors = {spread_between(from, to, shape, any_types(random))};
  while (random.below(3) == 0) {
    for (std::int64_t& extent : shape) extent = random.below(extent + 3);
    tensors.push_back(spread_between(from, to, shape, any_types(random)));
  }
  return tensors;
}

bool equal(const TestTensors& one, const TestTensors& other) {
  return std::ranges::equal(one, other, {}, &TestTensor::bytes, &TestTensor::bytes);
}

class History {
 public:
  explicit History(unsigned seed) : seed_(seed), random_(seed) {
    ends_.emplace(random_, random_.below(4) == 0 ? any_parts(random_) : any_layouts(random_));
    for (const Rank reader : ends_->readers()) held_[reader] = std::nullopt;
    ends_->publish(random_);
  }

  void step() {
    if (random_.below(3) == 0) return ends_->publish(random_);
    const auto reader = std::next(held_.begin(), random_.below(std::ssize(held_)))->first;
    if (held_[reader] && random_.below(5) > 0) return pull_patch(reader);
    ends_->read_dense(reader, ends_->version());
    held_[reader] = {1, ends_->version()};
  }

  int patches() const { return patches_; }

 private:
  // From any base that is not newer than what it holds, to any version that is not older.
  void pull_patch(Rank reader) {
    std::optional<HeldContent>& held = held_[reader];
    const std::int64_t base = 1 + random_.below(held->version);
    if (random_.below(8) == 0) {
      // Some elements get the newest version and nobody finishes: the base makes it whole later.
      ends_->apply(reader, ends_->patches(reader, base, ends_->version()), 0.5);
    }
    const std::int64_t version = ends_->version();
    ASSERT_TRUE(may_apply(held, {1, base, version, 0}));
    const std::int64_t chunk_bytes = 16 << random_.below(12);
    ends_->apply(reader, ends_->patches(reader, base, version, chunk_bytes));
    held = {1, version};
    ++patches_;
    ASSERT_TRUE(equal(ends_->target(reader), ends_->dense(reader, version)))
        << "seed " << seed_ << ", rank " << reader << " from " << base << " to " << version;
  }

  const unsigned seed_;
  plan::RandomCase random_;
  std::optional<BothEnds> ends_;
  std::map<Rank, std::optional<HeldContent>> held_;
  int patches_ = 0;
};

// Each with seeds of its own, so that several can run at once.
class HistoriesTest : public ::testing::TestWithParam<unsigned> {};

TEST_P(HistoriesTest, APatchFromAnyBaseGivesWhatADenseReadGives) {
  constexpr unsigned seeds = 500;
  int patches = 0;
  for (unsigned seed = GetParam() * seeds; seed < (GetParam() + 1) * seeds; ++seed) {
    History history(seed);
    for (int step = 0; step < 14; ++step) {
      history.step();
      if (HasFatalFailure()) return;
    }
    patches += history.patches();
  }
  EXPECT_GT(patches, 1000);
}

INSTANTIATE_TEST_SUITE_P(All, HistoriesTest, ::testing::Range(0U, 4U));

// Trainers in rows, engines in columns, uneven: the layouts that weights really have.
TEST(Histories, RowsBecomeColumnsInAnotherType) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    plan::RandomCase random(seed);
    const TestTypes types{Dtype::float32, Dtype::bfloat16, Dtype::float32};
    const Layout rows(Mesh({3}), {Shard{0}});
    const Layout columns(Mesh({2}), {Shard{1}});
    BothEnds ends(random, {spread_between(rows, columns, {151, 309}, types),
                           spread_between(rows, columns, {64, 1}, types),
                           spread_between(rows, columns, {1, 20'011}, types)});
    ends.publish(random);
    for (const Rank reader : ends.readers()) ends.read_dense(reader, 1);
    for (int version = 2; version < 6; ++version) {
      ends.publish(random);
      // One follows, the other stays at the first version until the last.
      ends.apply(0, ends.patches(0, version - 1, version));
      ASSERT_TRUE(equal(ends.target(0), ends.dense(0, version))) << seed;
    }
    ends.apply(1, ends.patches(1, 1, 5));
    ASSERT_TRUE(equal(ends.target(1), ends.dense(1, 5))) << seed;
  }
}

TEST(Histories, EqualStreamsAndBasesGiveTheSamePatch) {
  plan::RandomCase random(3);
  const Layout rows(Mesh({2}), {Shard{0}});
  const Layout whole(Mesh({2}), {Replicate{}});
  BothEnds ends(random, {spread_between(rows, whole, {300, 100}, {})});
  ends.publish(random);
  ends.publish(random);
  // However the stream is cut on its way.
  EXPECT_EQ(ends.patches(0, 1, 2), ends.patches(1, 1, 2, 1 << 20));
}

}  // namespace
}  // namespace tensorbus::delta
