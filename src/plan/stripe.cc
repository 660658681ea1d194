#include "plan/stripe.h"

namespace tensorbus::plan {

std::vector<Stripe> stripes_of(const Spans& spans) {
  std::vector<Stripe> stripes;
  for (const Span& span : spans) {
    if (!stripes.empty() && stripes.back().first.length == span.length) {
      Stripe& stripe = stripes.back();
      const std::int64_t source_step = span.source - stripe.first.source;
      const std::int64_t target_step = span.target - stripe.first.target;
      if (stripe.count == 1) {
        stripe.source_step = source_step;
        stripe.target_step = target_step;
      }
      if (source_step == stripe.count * stripe.source_step &&
          target_step == stripe.count * stripe.target_step) {
        ++stripe.count;
        continue;
      }
    }
    stripes.push_back({span, 1, 0, 0});
  }
  return stripes;
}

}  // namespace tensorbus::plan
