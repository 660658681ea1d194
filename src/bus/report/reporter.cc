#include "bus/report/reporter.h"

#include <unistd.h>

#include <cmath>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "os/process/process.h"

namespace tensorbus::bus {

Reporter::Reporter(const ObservedChannel& channel, ReporterOptions options)
    : channel_(channel),
      options_(std::move(options)),
      host_(os::host_name()),
      steady_to_wall_(wall_clock_ns() - now().time_since_epoch().count()) {}

// What waits may wait for others than before, and what is read gets further.
bool Reporter::is_news() const noexcept {
  return said_.empty() || channel_.changes() != changes_ || !channel_.running().empty();
}

void Reporter::tell(TimePoint now, Directory& directory, const Waits& waits) {
  next_ = now + options_.period;
  changes_ = channel_.changes();
  AgentStatus status = look(waits);
  std::string said = encode(status);
  if (said == said_) return;
  said_ = std::move(said);
  status.written_at = wall_clock_ns();
  directory.show(status_key(options_.rank), encode(std::move(status)));
}

AgentStatus Reporter::look(const Waits& waits) const {
  std::map<BatchSide, BatchStatus> batches;
  for (const auto& [of, last] : channel_.last()) {
    batches[of] = {of.first,         of.second,    std::string(to_string(last.work)),
                   last.version,     last.wall_ns, last.bytes,
                   last.took.count()};
    batches[of].from = last.from;
  }
  for (const auto& [id, command] : channel_.running()) {
    BatchStatus& batch = batches[command.of];
    const std::int64_t since = command.since.time_since_epoch().count() + steady_to_wall_;
    if (batch.since != 0 && batch.since < since) continue;
    batch.batch = command.of.first;
    batch.side = command.of.second;
    batch.work = to_string(command.work);
    batch.since = since;
    batch.bytes_done = command.bytes_done;
    batch.bytes_total = command.bytes_total;
    Awaited awaited = waits(command.of);
    batch.awaited = std::move(awaited.ranks);
    batch.waits = std::move(awaited.what);
  }
  AgentStatus status{options_.rank,   host_, ::getpid(), options_.embedded, 0, {}, 0,
                     options_.metrics};
  for (auto& [of, batch] : batches) status.batches.push_back(std::move(batch));
  return status;
}

TimePoint Reporter::wake_at() const noexcept {
  return options_.period == Duration::zero() || !is_news() ? TimePoint::max() : next_;
}

Duration status_period() {
  constexpr Duration usual = std::chrono::seconds(2);
  const auto text = config::variable("TENSORBUS_STATUS_PERIOD");
  if (!text) return usual;
  char* end = nullptr;
  const double seconds = std::strtod(text->c_str(), &end);
  if (end == text->c_str() || *end != '\0' || !(seconds >= 0) || seconds > 1e6) {
    log::warn("bus: TENSORBUS_STATUS_PERIOD is \"{}\", which is no number of seconds", *text);
    return usual;
  }
  return Duration(std::llround(seconds * 1e9));
}

}  // namespace tensorbus::bus
