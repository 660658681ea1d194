// A command queue whose records hold anything.
#include "bus/simulation/channel_liar.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  tensorbus::bus::is_read({reinterpret_cast<const char*>(data), size});
  return 0;
}
