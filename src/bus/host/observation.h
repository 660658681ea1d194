// What an agent shows of itself: its numbers, its page, its timeline. Made before the agent, gone
// after it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "bus/agent/agent.h"
#include "bus/report/observed_channel.h"
#include "fabric/core/pool.h"
#include "observe/recorder.h"
#include "observe/show/metrics_page.h"
#include "observe/show/trace_file.h"

namespace tensorbus::bus {

struct ObservationOptions {
  Rank rank = 0;
  std::string space;
  bool embedded = false;
  std::optional<std::string> metrics{};  // address of the page; nothing: as TENSORBUS_METRICS says
};

class Observation {
 public:
  Observation(Channel& channel, const std::shared_ptr<fabric::Pool>& pool,
              const ObservationOptions& options);

  ObservedChannel& channel() noexcept { return channel_; }
  ReporterOptions report() const { return report_; }

 private:
  std::shared_ptr<observe::HttpServer> page_;
  std::shared_ptr<observe::TraceFile> trace_;
  observe::Recorder recorder_;
  std::shared_ptr<void> pool_numbers_;
  ObservedChannel channel_;
  ReporterOptions report_;
};

}  // namespace tensorbus::bus
