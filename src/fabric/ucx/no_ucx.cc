// Stands in for the network fabric in builds without UCX.
#include "fabric/ucx/ucx.h"

namespace tensorbus::fabric {

std::unique_ptr<Fabric> make_ucx_fabric(const UcxOptions&) {
  throw Error(Code::unsupported, describe_ucx());
}

bool has_ucx() noexcept { return false; }

std::string describe_ucx() {
  return "this build of tensorbus has no UCX, so it cannot reach other hosts; install libucx-dev, "
         "or set UCX_ROOT, and build again";
}

UcxReport ucx_report() { return {}; }

}  // namespace tensorbus::fabric
