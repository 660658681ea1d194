// Ports that may be listened on, for firewalls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tensorbus::fabric {

// Both 0: the system chooses.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;

  bool any() const noexcept { return first == 0 && last == 0; }
  friend bool operator==(const PortRange&, const PortRange&) = default;
};

// "A-B" or "A"; empty: any. Error(invalid_argument) for all else.
PortRange parse_port_range(std::string_view text);
// Error(invalid_argument) if these are no range.
void check(const PortRange& ports);
// The given range, or if that is any port, what TENSORBUS_PORTS says. Checked.
PortRange effective(const PortRange& ports);
std::string to_string(const PortRange& ports);

}  // namespace tensorbus::fabric
