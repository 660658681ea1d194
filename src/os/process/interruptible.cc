#include "os/process/interruptible.h"

#include <utility>

#include "tensorbus/status.h"

namespace tensorbus::os {

void Interruptible::throw_if_ended() {
  const char* const why = by_.why();
  if (why == nullptr || std::exchange(told_, true)) return;
  throw Error(Code::cancelled, why);
}

}  // namespace tensorbus::os
