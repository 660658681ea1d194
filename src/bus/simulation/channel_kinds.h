// The channels there are, for the suite that all of them run.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "bus/channel/channel.h"

namespace tensorbus::bus {

// An agent's end and the way to it. Dropping `channel` stops the agent.
struct ChannelSetup {
  std::unique_ptr<Channel> channel;
  std::function<std::shared_ptr<Connection>()> connect;
  std::shared_ptr<void> keep;  // files and the like
};

struct ChannelKind {
  std::string name;
  std::function<ChannelSetup(std::size_t capacity)> make;
};

inline void PrintTo(const ChannelKind& kind, std::ostream* out) { *out << kind.name; }

std::vector<ChannelKind> channel_kinds();

}  // namespace tensorbus::bus
