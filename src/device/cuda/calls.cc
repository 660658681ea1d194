#include "device/cuda/calls.h"

#include <fmt/format.h>

#include <array>

#include "base/log.h"

namespace tensorbus::device::cuda {
namespace {

constexpr std::array names = {
#define TENSORBUS_NAME(name, parameters) #name,
    TENSORBUS_CUDA_FUNCTIONS(TENSORBUS_NAME)
#undef TENSORBUS_NAME
};

}  // namespace

bool is_sticky(Result result) noexcept {
  switch (result) {
    case illegal_address:
    case launch_timeout:
    case assert_failed:
    case unknown:
      return true;
    default:
      return result >= hardware_stack_error && result <= launch_failed;
  }
}

void Calls::die(const Status& why) {
  {
    const Lock lock(mutex_);
    if (!death_.ok()) return;
    death_ = why;
  }
  if (why.code != Code::cancelled) log::error("{}", why.message);
}

Status Calls::health() const {
  const Lock lock(mutex_);
  return death_;
}

void Calls::fail(Result result, std::size_t index) const {
  throw Error(Code::failed, fmt::format("{}: {} gives {}", to_string(id_), names.at(index),
                                        describe(functions_, result)));
}

void Calls::die_of(Result result) {
  if (result == deinitialized) {
    // The driver ends before us; who still waits is waiting for nothing.
    die({Code::cancelled, fmt::format("{}: this process is ending", to_string(id_))});
  } else {
    die({Code::failed,
         fmt::format("{} of this process has failed with {}, by this or an earlier call, of "
                     "tensorbus or of others; restart the process",
                     to_string(id_), describe(functions_, result))});
  }
  throw Error(health());
}

void Calls::refuse_if_dead() const {
  const Status death = health();
  if (!death.ok()) throw Error(death);
}

}  // namespace tensorbus::device::cuda
