// A process on the network that was let in, or nearly, and says anything in active messages.
#include "fabric/conformance/ucx_liar.h"
#include "fabric/ucx/ucx.h"

namespace {

std::unique_ptr<tensorbus::fabric::Fabric> make(const char* name) {
  tensorbus::fabric::UcxOptions options;
  options.identity = {"here", 1, 1, tensorbus::random_id(), name};
  options.secret = "secret";
  return tensorbus::fabric::make_ucx_fabric(options);
}

}  // namespace

// What belongs to living endpoints UCX keeps where the leak checker does not look.
extern "C" const char* __lsan_default_suppressions() { return "leak:ucs_calloc\n"; }

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus::fabric;
  // Never destroyed: UCX 1.13 ends a process that closes while it is being called (docs/fabric.md).
  static Victim& victim = *new Victim(make("victim"), make("friend"));
  static ucx::LiarStation& station = *new ucx::LiarStation;
  ucx::lie_through_ucx(station, victim, {reinterpret_cast<const char*>(data), size});
  return 0;
}
