// How the clocks of a job's hosts stand to the clock of whoever looks, as far as records tell: what
// was read has been written before, and what has changed between two looks was written between
// them. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "bus/report/status_record.h"

namespace tensorbus::bus {

class HostClocks {
 public:
  // What a store held at `now`, in nanoseconds since 1970 by our clock.
  void see(std::span<const AgentStatus> agents, std::int64_t now);
  // What the clock of the host shows when ours shows `now`.
  std::int64_t there(const std::string& host, std::int64_t now) const;
  // By how many nanoseconds a host is ahead of us, if that is more than a record takes to come.
  const std::map<std::string, std::int64_t>& ahead() const noexcept { return ahead_; }

 private:
  void judge(const AgentStatus& agent, std::int64_t now);

  std::map<std::string, std::int64_t> ahead_;
  std::map<Rank, std::int64_t> written_;  // at the last look
  std::int64_t looked_at_ = 0;
};

}  // namespace tensorbus::bus
