// The clock of traces.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace tensorbus::push_pull {

inline std::int64_t clock_ns() noexcept { return now().time_since_epoch().count(); }

}  // namespace tensorbus::push_pull
