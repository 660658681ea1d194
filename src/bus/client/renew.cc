#include "bus/client/renew.h"

namespace tensorbus::bus {

void renew(RegisterBatch& command, std::uint64_t number) noexcept { command.registration = number; }

}  // namespace tensorbus::bus
