#include "base/log.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "tensorbus/status.h"

namespace tensorbus::log {
namespace {

constexpr std::array<std::string_view, 5> level_names = {"trace", "debug", "info", "warn", "error"};

struct Log {
  std::atomic<Level> level = Level::info;
  ProcessMutex one_at_a_time;  // held while the sink is called
  Sink sink GUARDED_BY(one_at_a_time);
};

// Never destroyed: threads may log until the very end of the process.
Log& the_log() {
  static Log& instance = *new Log;
  return instance;
}
[[maybe_unused]] const Log& made_at_load = the_log();

// "2026-01-31 12:00:00.123", local.
std::string time_of_day() {
  const std::int64_t milliseconds = wall_clock_ns() / 1'000'000;
  const std::time_t seconds = milliseconds / 1000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03}", local, milliseconds % 1000);
}

// In one call, so that lines of several processes do not mix.
void write_to_stderr(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    if (written <= 0) return;
    line.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void set_sink(Sink sink) {
  const Lock lock(the_log().one_at_a_time);
  the_log().sink = std::move(sink);
}

void set_sink_to_stderr() { set_sink_to_stderr_as(""); }

void set_sink_to_stderr_as(std::string_view who) {
  set_sink([speaker = who.empty() ? "" : std::string(who) + ": "](Level level,
                                                                  std::string_view message) {
    const std::string_view name =
        level == Level::warn ? "warning" : level_names[static_cast<std::size_t>(level)];
    write_to_stderr(fmt::format("{} {}: {}{}\n", time_of_day(), name, speaker, message));
  });
}

Level parse_level(std::string_view name) {
  for (std::size_t i = 0; i < level_names.size(); ++i) {
    if (level_names[i] == name) return static_cast<Level>(i);
  }
  throw Error(Code::invalid_argument, "unknown log level \"" + std::string(name) +
                                          "\": use trace, debug, info, warn or error");
}

void set_level(Level level) { the_log().level.store(level, std::memory_order_relaxed); }

bool enabled(Level level) noexcept {
  return level >= the_log().level.load(std::memory_order_relaxed);
}

void write(Level level, std::string_view message) {
  const Lock lock(the_log().one_at_a_time);
  if (the_log().sink) the_log().sink(level, message);
}

}  // namespace tensorbus::log
