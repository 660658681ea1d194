#include "tensorbus/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tensorbus/status.h"

namespace tensorbus {
namespace {

TEST(Dtype, EveryNameParsesBackToItsType) {
  for (const Dtype dtype : all_dtypes()) {
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
    EXPECT_EQ(parse_dtype("torch." + std::string(to_string(dtype))), dtype);
    EXPECT_EQ(item_bytes(dtype) * 8, bits(dtype));
  }
}

TEST(Dtype, ShortFormsAreUnderstood) {
  EXPECT_EQ(parse_dtype("bf16"), Dtype::bfloat16);
  EXPECT_EQ(parse_dtype("f32"), Dtype::float32);
  EXPECT_EQ(parse_dtype("fp8e4m3"), Dtype::float8_e4m3fn);
  EXPECT_EQ(parse_dtype("i64"), Dtype::int64);
}

TEST(Dtype, AnUnknownNameIsAnErrorThatListsTheNames) {
  try {
    parse_dtype("float31");
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("\"float31\""), testing::HasSubstr("bfloat16")));
  }
}

// proves: B4.3
TEST(Dtype, OnlyTheTwelveTypesOfTheSpecificationConvert) {
  EXPECT_TRUE(castable(Dtype::float64, Dtype::bool_));
  EXPECT_TRUE(castable(Dtype::complex64, Dtype::complex64));
  EXPECT_FALSE(castable(Dtype::complex64, Dtype::float32));
  EXPECT_FALSE(castable(Dtype::uint16, Dtype::int32));
  EXPECT_FALSE(castable(Dtype::float32, Dtype::float4_e2m1fn_x2));
}

}  // namespace
}  // namespace tensorbus
