// Everything that a client or an agent reads from its socket or its file.
#include "bus/channel/command.h"
#include "bus/socket/protocol.h"
#include "decoded.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus;
  using namespace tensorbus::bus;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_decoder(decode_command, bytes);
  check_decoder(protocol::decode_from_client, bytes);
  check_decoder(protocol::decode_from_agent, bytes);
  return 0;
}
