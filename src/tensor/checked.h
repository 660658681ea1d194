// Arithmetic on sizes and offsets that says so when 63 bits do not suffice.
#pragma once

#include <cstdint>
#include <string>

#include "tensorbus/status.h"

namespace tensorbus {

inline std::int64_t checked_multiply(std::int64_t a, std::int64_t b, const char* what) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    throw Error(Code::invalid_argument, std::string(what) + " does not fit into 63 bits: " +
                                            std::to_string(a) + " x " + std::to_string(b));
  }
  return result;
}

inline std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* what) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    throw Error(Code::invalid_argument, std::string(what) + " does not fit into 63 bits: " +
                                            std::to_string(a) + " + " + std::to_string(b));
  }
  return result;
}

// For a >= 0, b > 0; does not overflow.
inline std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace tensorbus
