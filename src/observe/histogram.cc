#include "observe/histogram.h"

#include <bit>
#include <cmath>

namespace tensorbus::observe {

std::size_t Histogram::bucket_of(std::uint64_t nanoseconds) noexcept {
  if (nanoseconds < sub_buckets) return nanoseconds;
  const auto power = static_cast<unsigned>(std::bit_width(nanoseconds)) - 1;
  const std::uint64_t sub = (nanoseconds >> (power - 3)) & (sub_buckets - 1);
  return (power - 2) * sub_buckets + sub;
}

std::uint64_t Histogram::upper_bound(std::size_t bucket) noexcept {
  if (bucket < sub_buckets) return bucket;
  const std::size_t power = bucket / sub_buckets + 2;
  const std::size_t sub = bucket % sub_buckets;
  return ((sub_buckets + sub + 1) << (power - 3)) - 1;
}

void Histogram::record(Duration duration) noexcept {
  const auto nanoseconds = duration.count() < 0 ? 0 : static_cast<std::uint64_t>(duration.count());
  buckets_[bucket_of(nanoseconds)].add();
  count_.add();
  sum_.add(nanoseconds);
}

Distribution Histogram::distribution(std::span<const double> bounds) const {
  Distribution distribution;
  std::size_t bucket = 0;
  for (const double bound : bounds) {
    const auto most = static_cast<std::uint64_t>(std::llround(bound * 1e9));
    for (; bucket < buckets_.size() && upper_bound(bucket) <= most; ++bucket) {
      distribution.count += buckets_[bucket].value();
    }
    distribution.buckets.emplace_back(bound, distribution.count);
  }
  for (; bucket < buckets_.size(); ++bucket) distribution.count += buckets_[bucket].value();
  distribution.sum = static_cast<double>(sum_.value()) / 1e9;
  return distribution;
}

Duration Histogram::quantile(double share) const noexcept {
  const std::uint64_t total = count();
  if (total == 0) return Duration::zero();
  const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(total)));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    seen += buckets_[bucket].value();
    if (seen >= wanted && seen > 0) return Duration(static_cast<std::int64_t>(upper_bound(bucket)));
  }
  return Duration::zero();
}

}  // namespace tensorbus::observe
