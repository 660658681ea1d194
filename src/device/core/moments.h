// What users' streams had been given when a call was made, for all devices of the call.
#pragma once

#include <memory>
#include <vector>

#include "device/core/device.h"
#include "tensorbus/deadline.h"

namespace tensorbus::device {

// The device outlives the moment.
struct TakenMoment {
  Device* device = nullptr;
  std::shared_ptr<const Moment> moment;
};
using Moments = std::vector<TakenMoment>;

// Sleeps until this process knows that all have passed. Error(timeout) at the deadline; Error as
// Mark's.
void wait_until_passed(const Moments& moments, Deadline deadline);

}  // namespace tensorbus::device
