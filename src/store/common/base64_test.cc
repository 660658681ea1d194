#include "store/common/base64.h"

#include <gtest/gtest.h>

namespace tensorbus::store {
namespace {

// RFC 4648, section 10.
TEST(Base64, IsThatOfTheStandard) {
  const std::pair<std::string, std::string> known[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : known) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(bytes_of_base64(text), bytes);
  }
}

TEST(Base64, EveryByteComesBack) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(bytes_of_base64(to_base64(bytes)), bytes);
    bytes += static_cast<char>(i * 7);
  }
}

TEST(Base64, OtherTextIsNone) {
  for (const char* text :
       {"Z", "Zg=", "Zg", "Zm9v!m9v", "Z===", "====", "=Zg=", "Zg==Zg==", "Zm 9"}) {
    EXPECT_EQ(bytes_of_base64(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tensorbus::store
