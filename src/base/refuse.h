// How bad input is refused.
#pragma once

#include <string>

#include "tensorbus/status.h"

namespace tensorbus {

[[noreturn]] inline void refuse(const std::string& why) {
  throw Error(Code::invalid_argument, why);
}

}  // namespace tensorbus
