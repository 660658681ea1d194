// The log. The library never prints: until a sink is set, records go nowhere.
//
// error = the caller must act, warn = degraded but correct, info = a handful of lines per process,
// debug = per object, trace = per operation.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>

namespace tensorbus::log {

enum class Level { trace, debug, info, warn, error };

// Called on the logging thread, one record at a time; must not block and must not log.
using Sink = std::function<void(Level, std::string_view message)>;

void set_sink(Sink sink);
// For programs: readable lines on standard error.
void set_sink_to_stderr();
// Parses "trace" ... "error"; throws Error(invalid_argument) for anything else.
Level parse_level(std::string_view name);
void set_level(Level level);
bool enabled(Level level) noexcept;
void write(Level level, std::string_view message);

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

}  // namespace tensorbus::log
