// Spans as Chrome trace events, which Perfetto and chrome://tracing open: one JSON object a line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "observe/span.h"

namespace tensorbus::observe {

// What a trace file begins with: whose it is, and what its clock shows at one moment.
struct TraceOrigin {
  std::int64_t pid = 0;
  std::string host;  // for people
  std::string boot;  // machines with the same one have the same steady clock
  std::int64_t steady_ns = 0;
  std::int64_t wall_ns = 0;  // at the same moment
};

// Lines without a comma or line feed at their end, joined by ",\n".
std::string to_events(const TraceOrigin& origin);
// The span, and inside it one event for each of its phases. `space`: the namespace, if it has one.
std::string to_events(const Span& span, std::int64_t pid, std::string_view space = "");

}  // namespace tensorbus::observe
