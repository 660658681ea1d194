// Tells the store how the agent is, when that has changed and not too often.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bus/directory/directory.h"
#include "bus/registration/awaited.h"
#include "bus/report/observed_channel.h"
#include "bus/report/status_record.h"

namespace tensorbus::bus {

struct ReporterOptions {
  Rank rank = 0;
  bool embedded = false;
  Duration period = std::chrono::seconds(2);  // zero: it says nothing
  std::string metrics{};                      // URL of the agent's page
};

// Of the thread that has the agent.
class Reporter {
 public:
  // What the first command of a batch waits for.
  using Waits = std::function<Awaited(const BatchSide&)>;

  Reporter(const ObservedChannel& channel, ReporterOptions options);

  // There is something to say, and it may be said again.
  bool due(TimePoint now) const noexcept { return now >= wake_at(); }
  void tell(TimePoint now, Directory& directory, const Waits& waits);
  TimePoint wake_at() const noexcept;
  // The store has forgotten what was said.
  void repeat() noexcept { said_.reset(); }

 private:
  bool is_news() const noexcept;
  AgentStatus look(const Waits& waits) const;

  const ObservedChannel& channel_;
  const ReporterOptions options_;
  const std::string host_;
  const std::int64_t steady_to_wall_;
  std::uint64_t changes_ = 0;  // of the channel, at the last look
  TimePoint next_{};
  std::optional<AgentStatus> said_;  // without its time
};

// TENSORBUS_STATUS_PERIOD, or two seconds. A value that is none is warned of.
Duration status_period();

}  // namespace tensorbus::bus
