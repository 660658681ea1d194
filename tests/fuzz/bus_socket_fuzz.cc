// A client that says anything to the channel of a daemon, with any descriptors.
#include "bus/simulation/channel_liar.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static tensorbus::bus::DeceivedChannel channel;
  if (!channel.lie({reinterpret_cast<const char*>(data), size})) std::abort();
  return 0;
}
