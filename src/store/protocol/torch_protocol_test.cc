#include "store/protocol/torch_protocol.h"

#include <gtest/gtest.h>

#include "store/protocol/torch_writer.h"

namespace tensorbus::store {
namespace {

TEST(TorchProtocol, ARequestIsWholeOnlyWithItsLastByte) {
  const std::vector<std::string> keys{"/a", "/b"};
  const std::vector<Entry> entries{{"/a", "1"}, {"/b", ""}};
  for (const TorchWriter& writer :
       {TorchWriter().set("/key", "value"), TorchWriter().compare_set("/key", "a", "b"),
        TorchWriter().add("/key", -1), TorchWriter().wait(keys), TorchWriter().multi_set(entries),
        TorchWriter().ping(7), TorchWriter().list_keys()}) {
    const std::string& whole = writer.bytes();
    for (std::size_t size = 0; size < whole.size(); ++size) {
      std::size_t needed = 0;
      EXPECT_EQ(parse_torch_request(std::string_view(whole).substr(0, size), needed).size, 0U);
      EXPECT_GT(needed, size);
      EXPECT_LE(needed, whole.size());
    }
    std::size_t needed = 0;
    EXPECT_EQ(parse_torch_request(whole + "more", needed).size, whole.size());
  }
}

// proves: K7
TEST(TorchProtocol, LimitsAreKnownBeforeTheBytesArrive) {
  std::size_t needed = 0;
  const std::string long_key = Encoder().integer(std::uint8_t{3}).integer(max_key_size + 1).bytes();
  EXPECT_THROW(parse_torch_request(long_key, needed), Error);
  const std::string large_value = TorchWriter().set("/key", "").bytes();
  Encoder patched;
  patched.raw(large_value);
  patched.patch(large_value.size() - 8, std::uint64_t{max_value_size + 1});
  EXPECT_THROW(parse_torch_request(patched.bytes(), needed), Error);
  const std::string many = Encoder().integer(std::uint8_t{6}).integer(~std::uint64_t{0}).bytes();
  EXPECT_THROW(parse_torch_request(many, needed), Error);
}

TEST(TorchProtocol, AnUnknownOperationIsAnError) {
  std::size_t needed = 0;
  EXPECT_THROW(parse_torch_request("\x13", needed), Error);
  EXPECT_THROW(parse_torch_request("\xFF", needed), Error);
}

}  // namespace
}  // namespace tensorbus::store
