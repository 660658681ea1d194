#include "device/core/moments.h"

#include <fmt/format.h>

namespace tensorbus::device {

void wait_until_passed(const Moments& moments, Deadline deadline) {
  for (const auto& [device, moment] : moments) {
    if (device->open_queue()->watch(moment).wait(deadline)) continue;
    throw Error(
        Code::timeout,
        fmt::format("{}: what the stream had been given before the call is not over in time",
                    to_string(device->info().id)));
  }
}

}  // namespace tensorbus::device
