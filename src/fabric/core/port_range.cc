#include "fabric/core/port_range.h"

#include <fmt/format.h>

#include <charconv>

#include "base/config.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

std::uint16_t parse_port(std::string_view text, std::string_view whole) {
  std::uint16_t port = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (failure == std::errc() && end == text.data() + text.size() && port != 0) return port;
  throw Error(Code::invalid_argument,
              fmt::format("ports \"{}\": give two numbers from 1 to 65535, like 7000-7099", whole));
}

}  // namespace

PortRange parse_port_range(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t dash = text.find('-');
  const std::string_view last = dash == text.npos ? text : text.substr(dash + 1);
  const PortRange ports{parse_port(text.substr(0, dash), text), parse_port(last, text)};
  check(ports);
  return ports;
}

void check(const PortRange& ports) {
  if (ports.any() || (ports.first != 0 && ports.first <= ports.last)) return;
  throw Error(Code::invalid_argument,
              fmt::format("ports {}-{}: the first must be 1 or more and not "
                          "after the last",
                          ports.first, ports.last));
}

PortRange effective(const PortRange& ports) {
  check(ports);
  return ports.any() ? parse_port_range(config::variable("TENSORBUS_PORTS").value_or("")) : ports;
}

std::string to_string(const PortRange& ports) {
  return ports.any() ? "any" : fmt::format("{}-{}", ports.first, ports.last);
}

}  // namespace tensorbus::fabric
