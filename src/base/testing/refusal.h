// For tests of bad input.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tensorbus/status.h"

namespace tensorbus {

// What a call says that must be refused as an invalid argument.
template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace tensorbus
