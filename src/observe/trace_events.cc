#include "observe/trace_events.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "observe/text.h"

namespace tensorbus::observe {
namespace {

// Chrome counts in microseconds; three decimals keep the nanoseconds.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

std::string complete_event(std::string_view category, const std::string& name, const Span& span,
                           std::int64_t pid, std::int64_t begin, std::int64_t duration,
                           const std::string& arguments) {
  return fmt::format(
      R"({{"ph":"X","cat":"{}","name":{},"pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
      category, to_json_string(name), pid, span.rank, microseconds(begin),
      microseconds(std::max<std::int64_t>(duration, 0)), arguments);
}

std::string arguments_of(const Span& span, std::string_view space) {
  return fmt::format(
      R"({}"work":"{}","what":{},"version":{},"bytes":{},"outcome":"{}","rank":{},"side":{},)"
      R"("peers":[{}],"peer_count":{},"slowest":{})",
      space.empty() ? "" : fmt::format(R"("namespace":{},)", to_json_string(space)),
      to_string(span.work), to_json_string(span.name.view()), span.version, span.bytes,
      to_string(span.code), span.rank, to_json_string(span.side.view()),
      fmt::join(span.named_peers(), ","), span.peer_count, span.slowest);
}

}  // namespace

std::string to_events(const TraceOrigin& origin) {
  const std::string title = fmt::format("{} pid {}", origin.host, origin.pid);
  return fmt::format(
      R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":{1}}}}},)"
      "\n"
      R"({{"ph":"M","name":"tensorbus_clock","pid":{0},"args":{{"host":{2},"boot":{3},)"
      R"("steady_ns":{4},"wall_ns":{5}}}}})",
      origin.pid, to_json_string(title), to_json_string(origin.host), to_json_string(origin.boot),
      origin.steady_ns, origin.wall_ns);
}

std::string to_events(const Span& span, std::int64_t pid, std::string_view space) {
  const std::string_view work = to_string(span.work);
  std::string name = fmt::format("{} {}", work, span.name.view());
  if (span.version > 0) name += fmt::format(" v{}", span.version);
  std::string lines = complete_event(work, name, span, pid, span.begin, span.end - span.begin,
                                     arguments_of(span, space));
  std::int64_t begin = span.begin;
  for (const Phase phase : phases_of(span.work)) {
    const std::int64_t took = std::min(span.in(phase), span.end - begin);
    if (took <= 0) continue;
    lines += ",\n";
    lines += complete_event("phase", std::string(to_string(phase)), span, pid, begin, took,
                            fmt::format(R"("of":"{}")", work));
    begin += took;
  }
  return lines;
}

}  // namespace tensorbus::observe
