// Everything that an agent reads from the store, from other agents and from its state: a value that
// is encoded and decoded to itself, or an error in words.
#include <cstdlib>
#include <string>
#include <string_view>

#include "bus/heartbeat.h"
#include "bus/messages.h"
#include "bus/records.h"
#include "tensorbus/status.h"

namespace {

template <typename Decode>
void check(Decode decode, std::string_view bytes) {
  try {
    const auto value = decode(bytes);
    const std::string again = encode(value);
    if (encode(decode(again)) != again) std::abort();
  } catch (const tensorbus::Error& error) {
    if (error.code() != tensorbus::Code::invalid_argument) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus::bus;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check(decode_agent_record, bytes);
  check(decode_pair_member, bytes);
  check(decode_batch_member, bytes);
  check(decode_generation, bytes);
  check(decode_agent_message, bytes);
  check(decode_heartbeat, bytes);
  if (const auto key = parse_key(bytes); key && parse_key(to_text(*key)) != key) std::abort();
  return 0;
}
