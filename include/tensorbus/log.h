// Where log records go. The library never prints: until a sink is set, records go nowhere.
//
// error = the caller must act, warn = degraded but correct, info = a handful of lines per process,
// debug = per object, trace = per operation.
#pragma once

#include <functional>
#include <string_view>

#pragma GCC visibility push(default)

namespace tensorbus::log {

enum class Level { trace, debug, info, warn, error };

// Called on the logging thread, one record at a time; must not block, throw, log or fork, nor
// take a lock that another thread holds when it forks: a fork waits for the sink.
using Sink = std::function<void(Level, std::string_view message)>;

// An empty one: nowhere again.
void set_sink(Sink sink);
// For programs: readable lines on standard error.
void set_sink_to_stderr();
// What is below it is not made. At first info.
void set_level(Level level);
// Parses "trace" ... "error"; throws Error(invalid_argument) for anything else.
Level parse_level(std::string_view name);

}  // namespace tensorbus::log

#pragma GCC visibility pop
