// Words that tests of all layers share: how long a call may take, and how it failed.
#pragma once

#include <chrono>

#include "tensorbus/deadline.h"
#include "tensorbus/status.h"

namespace tensorbus {

// Later than anything that works, sooner than the test's own end.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

// How a call fails; ok: the call does not.
template <typename Call>
Code code_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::ok;
}

}  // namespace tensorbus
