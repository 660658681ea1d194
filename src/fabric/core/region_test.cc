#include "fabric/core/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/testing/refusal.h"
#include "fabric/core/descriptor.h"
#include "fabric/core/identity_fields.h"
#include "tensor/fields.h"
#include "wire/testing/random.h"

namespace tensorbus::fabric {
namespace {

Address some_address() {
  return {{"boot net", 4711, 99, random_id(), "rank 3"}, "shm", std::string("a\0b", 3)};
}

Descriptor some_descriptor() {
  return {some_address().identity,
          {{"shm", "tensorbus-x", 7}, {"ucx", std::string("a\0b", 3), 9}},
          1ull << 63,
          std::string("s\0\xff", 3),
          true,
          {{Dtype::bfloat16, {3, 4}, {-4, 1}}, {Dtype::int8, {}, {}}}};
}

TEST(DescriptorTest, ComesBackAsItWas) {
  const Descriptor descriptor = some_descriptor();
  EXPECT_EQ(decode_descriptor(encode(descriptor)), descriptor);
  const Address address = some_address();
  EXPECT_EQ(decode_address(encode(address)), address);
  EXPECT_LT(encode(descriptor).size(), 200u);
}

TEST(DescriptorTest, AnyComesBackAndDamagedOnesAreRefused) {
  wire::expect_codec<Descriptor>();
  wire::expect_codec<Address>([](const Address& address) { return encode(address); },
                              [](const std::string& bytes) { return decode_address(bytes); });
  wire::expect_codec<std::vector<Address>>(
      [](const std::vector<Address>& addresses) { return encode(addresses); },
      [](const std::string& bytes) { return decode_addresses(bytes); });
  wire::expect_codec<Forms>([](const Forms& forms) { return encode(forms); },
                            [](const std::string& bytes) { return decode_forms(bytes); });
}

TEST(DescriptorTest, OtherThingsAreRefusedWithTheReason) {
  EXPECT_THAT(refusal([] { decode_descriptor(encode(some_address())); }),
              testing::HasSubstr("made by something else"));
  std::string newer = encode(some_descriptor());
  newer[newer.find("tensorbus descriptor") + 20] = 3;
  EXPECT_THAT(refusal([&] { decode_descriptor(newer); }), testing::HasSubstr("its version is 3"));
  refusal([] { decode_descriptor(std::string(1 << 20, 'x')); });
}

TEST(DescriptorTest, BrokenBytesNeverDoMoreThanThrow) {
  std::mt19937 random(1);
  const std::string good = encode(some_descriptor());
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good.substr(0, random() % (good.size() + 1));
    for (std::size_t n = random() % 4; n > 0 && !bytes.empty(); --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    try {
      decode_descriptor(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
    }
    try {
      decode_forms(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
    }
  }
}

TEST(FormsTest, ComeBackAsTheyWere) {
  const Forms forms{
      {Dtype::bfloat16, {3, 4}, {-4, 1}}, {Dtype::int8, {}, {}}, {Dtype::int64, {0}, {1}}};
  EXPECT_EQ(decode_forms(encode(forms)), forms);
}

TEST(FormsTest, ImpossibleTensorsAreRefused) {
  refusal([] { decode_forms(encode(Forms{{Dtype::int8, {-1}, {1}}})); });
  refusal([] { decode_forms(encode(Forms{{Dtype::int8, {2}, {}}})); });
  refusal([] { decode_forms(encode(Forms{{Dtype::int64, {INT64_MAX, 4}, {4, 1}}})); });
}

TEST(ExtentTest, CoversWhatTheElementsTouch) {
  const auto extent = [](Shape shape, Shape strides) {
    const Extent e = extent_of({Dtype::int32, std::move(shape), std::move(strides)});
    return std::pair(e.begin, e.end);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(extent({}, {}), Pair(0, 4));
  EXPECT_EQ(extent({0, 3}, {3, 1}), Pair(0, 0));
  EXPECT_EQ(extent({2, 3}, {3, 1}), Pair(0, 24));
  EXPECT_EQ(extent({2, 3}, {-5, 1}), Pair(-20, 12));
}

TEST(WholeStreamTest, ReadsEveryElementOfEveryTensor) {
  const Forms forms{
      {Dtype::float32, {2, 3}, {1, 2}}, {Dtype::int8, {0}, {1}}, {Dtype::int8, {}, {}}};
  const Dtype types[] = {Dtype::float16, Dtype::int8, Dtype::int8};
  const plan::Stream stream = whole_stream(forms, types);
  EXPECT_EQ(stream.parts.size(), 2u);
  EXPECT_EQ(stream.payload_bytes, 25);
  EXPECT_EQ(stream.wire_bytes, 33);
  EXPECT_NO_THROW(check_source(stream, forms));
}

TEST(CheckSourceTest, StreamsThatLeadOutsideAreRefused) {
  const Forms forms{{Dtype::int8, {4}, {1}}};
  const Dtype types[] = {Dtype::int8};
  plan::Stream stream = whole_stream(forms, types);
  stream.parts[0].dims[0][0] = {1, 0, 4};
  EXPECT_THAT(refusal([&] { check_source(stream, forms); }), testing::HasSubstr("outside"));
  stream.parts[0].source_tensor = 1;
  EXPECT_THAT(refusal([&] { check_source(stream, forms); }), testing::HasSubstr("there are 1"));
}

TEST(GateTest, OnlyGrows) {
  Gate gate(std::make_shared<std::atomic<std::uint64_t>>(0));
  EXPECT_TRUE(gate.open(0));
  gate.move_to(5);
  EXPECT_FALSE(gate.still_open(4));
  EXPECT_TRUE(gate.still_open(5));
  gate.move_to(2);
  EXPECT_EQ(gate.value(), 5u);
}

// What is read from tensors in the type that crosses the wire is what would have been cast.
TEST(StreamFromTest, ReadsTensorsInTheTypeThatCrossesTheWire) {
  const Forms own{{Dtype::float32, {4}, {1}}, {Dtype::int64, {2}, {1}}};
  const Forms narrower{{Dtype::bfloat16, {4}, {1}}, {Dtype::int64, {2}, {1}}};
  plan::Stream stream = whole_stream(own, std::vector{Dtype::bfloat16, Dtype::int64});
  stream.parts[0].wire = Dtype::bfloat16;
  EXPECT_EQ(stream_from(own, stream), stream);
  plan::Stream expected = stream;
  expected.parts[0].types.source = Dtype::bfloat16;
  EXPECT_EQ(stream_from(narrower, stream), expected);
}

TEST(StreamFromTest, RefusesTensorsThatDoNotHaveWhatIsRead) {
  const Forms own{{Dtype::float32, {4}, {1}}};
  plan::Stream stream = whole_stream(own, std::vector{Dtype::float32});
  EXPECT_FALSE(stream_from({{Dtype::bfloat16, {4}, {1}}}, stream)) << "the reader wants it all";
  EXPECT_FALSE(stream_from({{Dtype::uint8, {0}, {1}}}, stream)) << "there is no memory yet";
  stream.parts[0].wire = Dtype::float16;
  EXPECT_FALSE(stream_from({{Dtype::bfloat16, {4}, {1}}}, stream)) << "another type";
  EXPECT_TRUE(stream_from({{Dtype::float16, {4}, {1}}}, stream));
  stream.source.ranks = {0, 1};
  EXPECT_FALSE(stream_from({{Dtype::float16, {4}, {1}}}, stream)) << "a sum is of the wide type";
  EXPECT_THAT(refusal([&] { stream_from({}, stream); }), testing::HasSubstr("source"));
}

}  // namespace
}  // namespace tensorbus::fabric
