// Everything that fabrics decode from strangers: a value or an Error, nothing else; and what was
// decoded is encoded to the same.
#include <string>
#include <string_view>

#include "fabric/descriptor.h"
#include "fabric/identity.h"
#include "fabric/region.h"
#include "fabric/shm_handshake.h"
#include "fabric/shm_peer.h"
#include "tensorbus/status.h"

namespace {

using namespace tensorbus;
using namespace tensorbus::fabric;

template <typename Decode>
void must_come_back(Decode decode, std::string_view bytes) {
  try {
    const auto value = decode(bytes);
    const std::string again = encode(value);
    if (encode(decode(again)) != again) __builtin_trap();
  } catch (const Error&) {
    // Refused, in words.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  must_come_back([](std::string_view text) { return decode_address(text); }, bytes);
  must_come_back([](std::string_view text) { return decode_descriptor(text); }, bytes);
  must_come_back([](std::string_view text) { return decode_forms(text); }, bytes);
  must_come_back([](std::string_view text) { return decode_hello(text); }, bytes);
  must_come_back([](std::string_view text) { return decode_greeting(text); }, bytes);
  must_come_back([](std::string_view text) { return decode_ask(text); }, bytes);
  must_come_back([](std::string_view text) { return decode_status(text); }, bytes);
  return 0;
}
