// A process of this host that was let in, or nearly, and says anything.
#include "fabric/conformance/shm_liar.h"
#include "fabric/shm/fabric.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus;
  using namespace tensorbus::fabric;
  if (size == 0) return 0;
  static Victim reads(make_shm_fabric({"victim", "secret", nullptr, true}),
                      make_shm_fabric({"friend", "", nullptr, true}));
  static Victim asks(make_shm_fabric({"victim", "secret", nullptr, false}),
                     make_shm_fabric({"friend", "", nullptr, false}));
  // Whoever is not polled for seconds is taken for stopped.
  Victim& victim = data[0] % 2 == 0 ? reads : asks;
  reads.poll();
  asks.poll();
  lie_through_shm(victim, {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
