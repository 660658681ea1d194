// Writing to the log.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string_view>

#include "tensorbus/deadline.h"
#include "tensorbus/log.h"

namespace tensorbus::log {

bool enabled(Level level) noexcept;
void write(Level level, std::string_view message);
// As set_sink_to_stderr(), with lines that say whose they are: for programs whose processes share
// one standard error.
void set_sink_to_stderr_as(std::string_view who);

template <typename... Args>
void at(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void trace(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::trace, format, std::forward<Args>(args)...);
}
template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::debug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::info, format, std::forward<Args>(args)...);
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::warn, format, std::forward<Args>(args)...);
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::error, format, std::forward<Args>(args)...);
}

// Of many warnings that say the same, lets through the first and then one in a while.
class Seldom {
 public:
  explicit Seldom(Duration interval = std::chrono::minutes(1)) : interval_(interval) {}

  bool due(TimePoint now) noexcept {
    if (last_ && now - *last_ < interval_) return false;
    last_ = now;
    return true;
  }

 private:
  Duration interval_;
  std::optional<TimePoint> last_;
};

}  // namespace tensorbus::log
