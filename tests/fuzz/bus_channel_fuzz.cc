// Everything that a client or an agent reads from its socket or its file: an error in words, or a
// value that is encoded and decoded to itself.
#include <cstdlib>
#include <string_view>

#include "bus/command.h"
#include "bus/wire.h"
#include "tensorbus/status.h"

namespace {

template <typename Decode>
void check(Decode decode, std::string_view bytes) {
  try {
    const auto value = decode(bytes);
    if (decode(encode(value)) != value) std::abort();
  } catch (const tensorbus::Error& error) {
    if (error.code() != tensorbus::Code::invalid_argument) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus::bus;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check(decode_command, bytes);
  check(decode_outcome, bytes);
  check(wire::decode_from_client, bytes);
  check(wire::decode_from_agent, bytes);
  return 0;
}
