// Everything that fabrics decode from strangers.
#include "decoded.h"
#include "fabric/core/descriptor.h"
#include "fabric/core/identity.h"
#include "fabric/core/region.h"
#include "fabric/shm/handshake.h"
#include "fabric/shm/peer.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus;
  using namespace tensorbus::fabric;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto encoded = [](const auto& value) { return encode(value); };
  check_decoder(decode_address, bytes, encoded);
  check_decoder(decode_descriptor, bytes, encoded);
  check_decoder(decode_forms, bytes, encoded);
  check_decoder(decode_hello, bytes, encoded, Code::failed);
  check_decoder(decode_greeting, bytes, encoded, Code::failed);
  check_decoder(decode_ask, bytes, encoded, Code::failed);
  check_decoder(decode_status, bytes, encoded, Code::failed);
  return 0;
}
