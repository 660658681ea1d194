// For whoever looks at a job: when keys will lapse. Of stores that know; the others are no
// LeaseTimes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensorbus/deadline.h"

namespace tensorbus::store {

struct LeaseTime {
  Duration time_to_live{};
  Duration left{};  // until the lease lapses, if nobody renews it
  friend bool operator==(const LeaseTime&, const LeaseTime&) = default;
};

class LeaseTimes {
 public:
  virtual ~LeaseTimes() = default;
  // One for each key, in order; nothing for an absent key and for one without a lease. A server of
  // an older release says Error(invalid_argument).
  virtual std::vector<std::optional<LeaseTime>> lease_times(std::span<const std::string> keys,
                                                            Deadline deadline) = 0;
};

}  // namespace tensorbus::store
