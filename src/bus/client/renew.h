// What a client asks of an agent that has taken over from the one that it had asked.
#pragma once

#include <cstdint>

#include "bus/channel/command.h"

namespace tensorbus::bus {

// A registration that had not come back becomes a new one: the old number may stand in a
// generation, and that has ended with the old agent.
void renew(RegisterBatch& command, std::uint64_t number) noexcept;

}  // namespace tensorbus::bus
