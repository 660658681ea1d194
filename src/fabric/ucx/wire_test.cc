#include "fabric/ucx/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "fabric/core/messages.h"

namespace tensorbus::fabric::ucx {
namespace {

Hello example_hello() {
  return {7, random_id(), {"host", 12, 34, random_id(), "rank 3"}, random_id(), "worker address"};
}

Welcome example_welcome() {
  return {8, random_id(), {"other host", 56, 78, random_id(), "rank 4"}, "proof"};
}

TEST(UcxWire, AFrameComesBackAsItWas) {
  const Frame frame{Kind::fragment, 0x1234567890abcdef, 2, 3, 4};
  EXPECT_EQ(decode_frame(encode(frame)), frame);
}

TEST(UcxWire, AFrameAndItsBodyFitIntoOneFragmentOfUcx) {
  EXPECT_LE(frame_bytes + max_body_bytes, 65'528u);
  EXPECT_GE(max_body_bytes, max_message_bytes);
}

TEST(UcxWire, AFrameOfAnotherVersionIsRefusedAndSaysSo) {
  FrameBytes bytes = encode(Frame{});
  bytes[4] = std::byte{9};
  try {
    decode_frame(bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("protocol version 9, ours is 1"));
  }
}

TEST(UcxWire, BodiesComeBackAsTheyWere) {
  const Hello hello = example_hello();
  const Hello hello_again = decode_hello(encode(hello));
  EXPECT_EQ(hello_again.stream, hello.stream);
  EXPECT_EQ(hello_again.nonce, hello.nonce);
  EXPECT_EQ(hello_again.identity, hello.identity);
  EXPECT_EQ(hello_again.expected, hello.expected);
  EXPECT_EQ(hello_again.address, hello.address);

  const Welcome welcome = example_welcome();
  const Welcome welcome_again = decode_welcome(encode(welcome));
  EXPECT_EQ(welcome_again.stream, welcome.stream);
  EXPECT_EQ(welcome_again.identity, welcome.identity);
  EXPECT_EQ(welcome_again.proof, welcome.proof);

  const Ask ask = decode_ask(encode(Ask{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(ask.region, 1u);
  EXPECT_EQ(ask.window, 6u);
  const SwapRequest swap = decode_swap(encode(SwapRequest{1, 2, 3, 4, 5}));
  EXPECT_EQ(swap.word, 3u);
  EXPECT_EQ(swap.desired, 5u);

  const Status status{Code::withdrawn, "taken back"};
  EXPECT_EQ(decode_status(encode(status)), status);
}

TEST(UcxWire, ATextThatIsTooLongIsCutAndNotRefused) {
  const Status status = decode_status(encode(Status{Code::failed, std::string(100'000, 'x')}));
  EXPECT_EQ(status.code, Code::failed);
  EXPECT_EQ(status.message, std::string(4096, 'x'));
}

TEST(UcxWire, AProofFitsOneSecretOneRoleAndOneGreeting) {
  const Hello hello = example_hello();
  const Welcome welcome = example_welcome();
  const std::string proof = prove("secret", Role::caller, hello, welcome);
  EXPECT_EQ(proof, prove("secret", Role::caller, hello, welcome));
  EXPECT_NE(proof, prove("Secret", Role::caller, hello, welcome));
  EXPECT_NE(proof, prove("secret", Role::answerer, hello, welcome));
  EXPECT_NE(proof, prove("secret", Role::caller, example_hello(), welcome));
  EXPECT_NE(proof, prove("secret", Role::caller, hello, example_welcome()));
  Welcome proven = welcome;
  proven.proof = "another";
  EXPECT_EQ(proof, prove("secret", Role::caller, hello, proven)) << "a proof is not part of itself";
}

// Bytes of a peer may be anything: each decoder gives a value or throws Error, nothing else.
TEST(UcxWire, BrokenBytesAreErrors) {
  std::mt19937_64 random(1);
  const auto survives = [](const std::function<void(std::string_view)>& decode,
                           const std::string& bytes) {
    try {
      decode(bytes);
    } catch (const Error&) {
    }
  };
  const std::vector<std::pair<std::function<void(std::string_view)>, std::string>> cases = {
      {[](std::string_view bytes) { decode_hello(bytes); }, encode(example_hello())},
      {[](std::string_view bytes) { decode_welcome(bytes); }, encode(example_welcome())},
      {[](std::string_view bytes) { decode_ask(bytes); }, encode(Ask{})},
      {[](std::string_view bytes) { decode_swap(bytes); }, encode(SwapRequest{})},
      {[](std::string_view bytes) { decode_status(bytes); }, encode(Status{Code::failed, "why"})},
      {[](std::string_view bytes) {
         decode_frame(std::as_bytes(std::span(bytes.data(), bytes.size())));
       },
       std::string(reinterpret_cast<const char*>(encode(Frame{}).data()), frame_bytes)},
  };
  for (const auto& [decode, good] : cases) {
    for (std::size_t size = 0; size < good.size(); ++size) {
      EXPECT_THROW(decode(std::string_view(good).substr(0, size)), Error) << size;
    }
    EXPECT_THROW(decode(good + "x"), Error);
    for (int i = 0; i < 20'000; ++i) {
      std::string bytes = good;
      for (std::size_t flips = 1 + random() % 4; flips > 0; --flips) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 8));
      survives(decode, bytes);
    }
  }
}

}  // namespace
}  // namespace tensorbus::fabric::ucx
