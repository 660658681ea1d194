#include "bus/socket/protocol.h"

#include "bus/socket/protocol_fields.h"

namespace tensorbus::bus::protocol {

std::string encode(const FromClient& message) { return wire::write(message); }
std::string encode(const FromAgent& message) { return wire::write(message); }
FromClient decode_from_client(std::string_view bytes) { return wire::read<FromClient>(bytes); }
FromAgent decode_from_agent(std::string_view bytes) { return wire::read<FromAgent>(bytes); }

}  // namespace tensorbus::bus::protocol
