#include "endpoint/messages.h"

#include <gtest/gtest.h>

#include "wire/testing/random.h"

namespace tensorbus::endpoint {
namespace {

TEST(EndpointMessagesTest, AnyComesBackAndDamagedOnesAreRefused) {
  wire::expect_codec<EndpointMessage>(
      [](const EndpointMessage& message) { return encode(message); },
      [](const std::string& bytes) { return decode_message(bytes); });
}

TEST(EndpointMessagesTest, KindsThatDoNotExistAreRefused) {
  std::string message = encode(EndpointMessage(AliasMessage{AliasMessage::Kind::let_go, 7, 0}));
  message[0] = 3;
  EXPECT_THROW(decode_message(message), Error);
  message[0] = 0;
  message[1] = 5;
  EXPECT_THROW(decode_message(message), Error);
}

}  // namespace
}  // namespace tensorbus::endpoint
