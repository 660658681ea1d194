#include "bus/report/host_clocks.h"

namespace tensorbus::bus {
namespace {

// A record may wait for its store, and a look for its answer.
constexpr std::int64_t usual_delay = 2'000'000'000;

}  // namespace

void HostClocks::see(std::span<const AgentStatus> agents, std::int64_t now) {
  for (const AgentStatus& agent : agents) judge(agent, now);
  written_.clear();
  for (const AgentStatus& agent : agents) written_[agent.rank] = agent.written_at;
  looked_at_ = now;
}

void HostClocks::judge(const AgentStatus& agent, std::int64_t now) {
  const auto before = written_.find(agent.rank);
  const bool is_new = before != written_.end() && before->second != agent.written_at;
  if (agent.written_at - now > usual_delay) {
    ahead_[agent.host] = agent.written_at - now;
  } else if (is_new && looked_at_ - agent.written_at > usual_delay) {
    ahead_[agent.host] = agent.written_at - looked_at_;
  } else if (is_new) {
    ahead_.erase(agent.host);
  }
}

std::int64_t HostClocks::there(const std::string& host, std::int64_t now) const {
  const auto found = ahead_.find(host);
  return found == ahead_.end() ? now : now + found->second;
}

}  // namespace tensorbus::bus
