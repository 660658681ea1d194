#include "observe/histogram.h"

#include <gtest/gtest.h>

namespace tensorbus::observe {
namespace {

TEST(Histogram, WithoutRecordsHasNoQuantile) {
  const Histogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), Duration::zero());
}

TEST(Histogram, QuantilesAreOffByAtMostAnEighth) {
  Histogram histogram;
  for (int i = 1; i <= 10'000; ++i) histogram.record(Duration(i * 10));
  EXPECT_EQ(histogram.count(), 10'000U);
  for (const double share : {0.01, 0.5, 0.9, 0.99, 1.0}) {
    const double exact = share * 100'000;
    const auto measured = static_cast<double>(histogram.quantile(share).count());
    EXPECT_GE(measured, exact * 0.999) << share;
    EXPECT_LE(measured, exact * 1.126) << share;
  }
}

TEST(Histogram, ADistributionCountsUpToEachBound) {
  Histogram histogram;
  for (const int milliseconds : {1, 2, 30, 400, 5000}) {
    histogram.record(std::chrono::milliseconds(milliseconds));
  }
  const Distribution distribution = histogram.distribution(std::array{0.01, 0.1, 1.0});
  using Buckets = decltype(distribution.buckets);
  EXPECT_EQ(distribution.buckets, (Buckets{{0.01, 2}, {0.1, 3}, {1.0, 4}}));
  EXPECT_EQ(distribution.count, 5U);
  EXPECT_DOUBLE_EQ(distribution.sum, 5.433);
}

TEST(Histogram, TakesExtremes) {
  Histogram histogram;
  histogram.record(Duration(-5));
  histogram.record(Duration(0));
  histogram.record(Duration::max());
  EXPECT_EQ(histogram.count(), 3U);
  EXPECT_EQ(histogram.quantile(0.1), Duration(0));
  EXPECT_GE(histogram.quantile(1.0).count(), Duration::max().count() / 8 * 7);
}

}  // namespace
}  // namespace tensorbus::observe
