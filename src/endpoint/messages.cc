#include "endpoint/messages.h"

#include "wire/message.h"

namespace tensorbus::endpoint {
namespace {

constexpr wire::Title message_title{"message between endpoints"};

}  // namespace

std::string encode(const EndpointMessage& message) { return wire::write(message, message_title); }

EndpointMessage decode_message(std::string_view bytes) {
  return wire::read<EndpointMessage>(bytes, message_title);
}

}  // namespace tensorbus::endpoint
