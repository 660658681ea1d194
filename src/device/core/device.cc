#include "device/core/device.h"

#include <fmt/format.h>

namespace tensorbus::device {

std::string to_string(Id id) { return fmt::format("cuda:{}", id.ordinal); }

}  // namespace tensorbus::device
