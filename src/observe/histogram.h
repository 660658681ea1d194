// How durations are distributed, in fixed memory: eight buckets per power of two, so a quantile is
// off by at most an eighth.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "observe/counter.h"
#include "observe/metrics.h"
#include "tensorbus/deadline.h"

namespace tensorbus::observe {

class Histogram {
 public:
  void record(Duration duration) noexcept;
  std::uint64_t count() const noexcept { return count_.value(); }
  // The duration that a share of all records (0 to 1) does not exceed; zero without records.
  Duration quantile(double share) const noexcept;
  // How many records each of these bounds (seconds, ascending) covers, to an eighth.
  Distribution distribution(std::span<const double> bounds) const;

 private:
  static constexpr unsigned sub_buckets = 8;
  static std::size_t bucket_of(std::uint64_t nanoseconds) noexcept;
  static std::uint64_t upper_bound(std::size_t bucket) noexcept;

  std::array<Counter, 64 * sub_buckets> buckets_;
  Counter count_;
  Counter sum_;  // nanoseconds
};

}  // namespace tensorbus::observe
