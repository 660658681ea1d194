#include "bus/report/reporter.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "os/process/process.h"

namespace tensorbus::bus {
namespace {

BatchStatus status_of(const LastMove& last) {
  BatchStatus batch;
  batch.work = to_string(last.work);
  batch.version = last.version;
  batch.moved_at = last.wall_ns;
  batch.bytes = last.bytes;
  batch.took = std::max<std::int64_t>(last.took.count(), 0);
  batch.from = last.from;
  return batch;
}

}  // namespace

Reporter::Reporter(const ObservedChannel& channel, ReporterOptions options)
    : channel_(channel),
      options_(std::move(options)),
      host_(os::host_name()),
      steady_to_wall_(wall_clock_ns() - now().time_since_epoch().count()) {}

// What waits may wait for others than before, and what is read gets further.
bool Reporter::is_news() const noexcept {
  return !said_ || channel_.changes() != changes_ || !channel_.running().empty();
}

void Reporter::tell(TimePoint now, Directory& directory, const Waits& waits) {
  next_ = now + options_.period;
  changes_ = channel_.changes();
  AgentStatus status = look(waits);
  if (said_ == status) return;
  said_ = status;
  status.written_at = wall_clock_ns();
  directory.show(status_key(options_.rank), encode(std::move(status)));
}

AgentStatus Reporter::look(const Waits& waits) const {
  std::map<BatchSide, BatchStatus> batches;
  for (const auto& [of, registered] : channel_.registered()) {
    if (registered.last) batches[of] = status_of(*registered.last);
  }
  for (const auto& [id, command] : channel_.running()) {
    BatchStatus& batch = batches[command.of];
    const std::int64_t since = command.since.time_since_epoch().count() + steady_to_wall_;
    if (batch.since != 0 && batch.since < since) continue;
    batch.work = to_string(command.work);
    batch.since = since;
    batch.bytes_done = command.bytes_done;
    batch.bytes_total = command.bytes_total;
    Awaited awaited = waits(command.of);
    batch.awaited = std::move(awaited.ranks);
    batch.waits = std::move(awaited.what);
    batch.reads.reset();
    if (!awaited.read) continue;
    batch.reads = awaited.read->version;
    batch.from = std::move(awaited.read->from);
  }
  AgentStatus status{options_.rank,   host_, ::getpid(), options_.embedded, 0, {}, 0,
                     options_.metrics};
  for (auto& [of, batch] : batches) {
    std::tie(batch.batch, batch.side) = of;
    const auto registered = channel_.registered().find(of);
    if (registered != channel_.registered().end()) {
      batch.world_size = registered->second.world_size;
    }
    status.batches.push_back(std::move(batch));
  }
  // What runs, and then what has moved last: the record may have no room for the others.
  std::ranges::stable_sort(status.batches, std::greater(), [](const BatchStatus& batch) {
    return std::pair(batch.since != 0, batch.moved_at);
  });
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
