// The channel of an agent that lives in the process of its workers. No files, no journal: a command
// is accepted when it is in the queue, and loans are passed as they are.
#pragma once

#include <memory>

#include "bus/channel/channel.h"

namespace tensorbus::bus {

class MemoryChannel : public Channel {
 public:
  // Any thread, as long as the channel lives. Sessions count from 1.
  virtual std::shared_ptr<Connection> connect() = 0;
};

// When the channel is dropped, everything pending ends as unreachable.
std::unique_ptr<MemoryChannel> make_memory_channel(std::size_t capacity = default_queue_capacity);

}  // namespace tensorbus::bus
