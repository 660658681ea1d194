#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "tensorbus/status.h"

namespace tensorbus::log {
namespace {

constexpr std::array<std::string_view, 5> level_names = {"trace", "debug", "info", "warn", "error"};

spdlog::level::level_enum to_spdlog(Level level) {
  return static_cast<spdlog::level::level_enum>(static_cast<int>(level));
}
static_assert(static_cast<int>(Level::error) == SPDLOG_LEVEL_ERROR);

class CallbackSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit CallbackSink(Sink callback) : callback_(std::move(callback)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    callback_(static_cast<Level>(message.level),
              std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

  Sink callback_;
};

// Sinks are swapped while other threads log, so the logger itself is never replaced: it owns one
// sink that forwards to the current one under a lock.
class SwitchSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  SwitchSink() : target_(std::make_shared<spdlog::sinks::null_sink_mt>()) {}
  void point_to(spdlog::sink_ptr target) {
    const std::lock_guard lock(mutex_);
    target_ = std::move(target);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override { target_->log(message); }
  void flush_() override { target_->flush(); }

  spdlog::sink_ptr target_;
};

struct Log {
  std::shared_ptr<SwitchSink> sink = std::make_shared<SwitchSink>();
  spdlog::logger logger{"tensorbus", sink};
};

// Never destroyed: threads may log until the very end of the process.
Log& the_log() {
  static Log& instance = *new Log;
  return instance;
}

}  // namespace

void set_sink(Sink sink) {
  if (!sink) return the_log().sink->point_to(std::make_shared<spdlog::sinks::null_sink_mt>());
  the_log().sink->point_to(std::make_shared<CallbackSink>(std::move(sink)));
}

void set_sink_to_stderr() { set_sink_to_stderr_as(""); }

void set_sink_to_stderr_as(std::string_view who) {
  auto target = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  std::string speaker;
  for (const char letter : who) speaker += letter == '%' ? "%%" : std::string(1, letter);
  if (!who.empty()) speaker += ": ";
  target->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: " + speaker + "%v");
  the_log().sink->point_to(std::move(target));
}

Level parse_level(std::string_view name) {
  for (std::size_t i = 0; i < level_names.size(); ++i) {
    if (level_names[i] == name) return static_cast<Level>(i);
  }
  throw Error(Code::invalid_argument, "unknown log level \"" + std::string(name) +
                                          "\": use trace, debug, info, warn or error");
}

void set_level(Level level) { the_log().logger.set_level(to_spdlog(level)); }

bool enabled(Level level) noexcept { return the_log().logger.should_log(to_spdlog(level)); }

void write(Level level, std::string_view message) {
  the_log().logger.log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace tensorbus::log
