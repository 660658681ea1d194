#include "bus/round/step.h"

#include <array>

namespace tensorbus::bus {

std::string_view to_string(Step step) noexcept {
  static constexpr std::array<std::string_view, step_count> names{
      "started",     "pairing",   "registering", "generation begun", "generation ended",
      "subscribing", "joining",   "joined",      "subscribed",       "holding",
      "releasing",   "offered",   "revoked",     "conflicting",      "sent",
      "reading",     "draining",  "committing",  "received",         "skipping",
      "slot taken",  "published", "pinning",     "patch offered",    "fetching",
      "applying",    "voted",     "decided",     "closing"};
  return names[static_cast<std::size_t>(step)];
}

}  // namespace tensorbus::bus
