#include "endpoint/messages.h"

#include "wire/message.h"

namespace tensorbus::endpoint {
namespace {

constexpr wire::Title message_title{"message between endpoints"};

}  // namespace

std::string encode(const Message& message) { return wire::write(message, message_title); }

Message decode_message(std::string_view bytes) { return wire::read<Message>(bytes, message_title); }

}  // namespace tensorbus::endpoint
