// For programs whose processes share one standard error.
#pragma once

#include <string_view>

namespace tensorbus::log {

// As set_sink_to_stderr(), with lines that say whose they are.
void set_sink_to_stderr_as(std::string_view who);

}  // namespace tensorbus::log
