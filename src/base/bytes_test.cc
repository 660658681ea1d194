#include "base/bytes.h"

#include <gtest/gtest.h>

namespace tensorbus {
namespace {

TEST(Bytes, ReadsWhatWasWritten) {
  Encoder encoder;
  encoder.integer(std::uint8_t{7}).integer(std::int64_t{-5}).string("key").raw("tail");
  encoder.patch(0, std::uint8_t{9});
  Decoder decoder(encoder.bytes());
  EXPECT_EQ(decoder.integer<std::uint8_t>(), 9);
  EXPECT_EQ(decoder.integer<std::int64_t>(), -5);
  EXPECT_EQ(decoder.string(), "key");
  EXPECT_EQ(decoder.left(), 4U);
  EXPECT_THROW(decoder.end(), Error);
  EXPECT_EQ(decoder.raw(4), "tail");
  EXPECT_NO_THROW(decoder.end());
}

TEST(Bytes, EveryCutIsAnErrorAndReadsNothingBeyond) {
  const std::string whole =
      std::move(Encoder().integer(std::uint32_t{1}).string("abc").integer(std::uint64_t{2}))
          .bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // A copy of exactly this size, so that the sanitizers see a read past it.
    const std::string cut = whole.substr(0, size);
    EXPECT_THROW(
        {
          Decoder decoder(cut);
          decoder.integer<std::uint32_t>();
          decoder.string();
          decoder.integer<std::uint64_t>();
        },
        Error)
        << size;
  }
}

TEST(Bytes, AForgedCountIsRefusedBeforeAnythingIsAllocated) {
  const std::string forged = std::move(Encoder().integer(std::uint32_t{0xFFFF'FFFF})).bytes();
  Decoder decoder(forged);
  EXPECT_THROW(decoder.count(1), Error);
}

}  // namespace
}  // namespace tensorbus
