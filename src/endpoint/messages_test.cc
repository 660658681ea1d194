#include "endpoint/messages.h"

#include <gtest/gtest.h>

#include "wire/testing/random.h"

namespace tensorbus::endpoint {
namespace {

TEST(EndpointMessagesTest, AnyComesBackAndDamagedOnesAreRefused) {
  wire::expect_codec<Message>([](const Message& message) { return encode(message); },
                              [](const std::string& bytes) { return decode_message(bytes); });
}

TEST(EndpointMessagesTest, KindsThatDoNotExistAreRefused) {
  std::string holding = encode(Message(Holding{Holding::Kind::let_go, 7}));
  holding[0] = 3;
  EXPECT_THROW(decode_message(holding), Error);
  holding[0] = 0;
  holding[1] = 5;
  EXPECT_THROW(decode_message(holding), Error);
}

}  // namespace
}  // namespace tensorbus::endpoint
