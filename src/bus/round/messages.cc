#include "bus/round/messages.h"

#include "bus/directory/record_fields.h"

namespace tensorbus::bus {

std::string_view name_of(const MessageBody& body) noexcept {
  return wire::names_of_kinds<MessageBody>()[body.index()];
}

std::string encode(const AgentMessage& message) { return wire::write(message); }
AgentMessage decode_agent_message(std::string_view bytes) {
  return wire::read<AgentMessage>(bytes);
}

}  // namespace tensorbus::bus
