// Spans that repeat: how strided shards become loops instead of lists.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorbus/plan.h"

namespace tensorbus::plan {

// `count` spans of `length`, each a step after the one before it.
struct Stripe {
  Span first;
  std::int64_t count = 1;
  std::int64_t source_step = 0;
  std::int64_t target_step = 0;

  std::int64_t size() const noexcept { return first.length * count; }
};

// In order, each stripe as long as possible.
std::vector<Stripe> stripes_of(const Spans& spans);

}  // namespace tensorbus::plan
