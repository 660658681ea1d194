// Agents whose store, peers, workers and files say anything.
#include "bus/simulation/agent_liar.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus::bus::simulation;
  if (!LiedTo({reinterpret_cast<const char*>(data), size}).run()) std::abort();
  return 0;
}
