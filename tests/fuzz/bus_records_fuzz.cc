// Everything that an agent reads from the store, from other agents and from its state.
#include "bus/directory/records.h"
#include "bus/files/heartbeat.h"
#include "bus/round/messages.h"
#include "decoded.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus;
  using namespace tensorbus::bus;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_decoder(decode_agent_record, bytes);
  check_decoder(decode_pair_member, bytes);
  check_decoder(decode_batch_member, bytes);
  check_decoder(decode_version_record, bytes);
  check_decoder(decode_generation, bytes);
  check_decoder(decode_agent_message, bytes);
  check_decoder(decode_heartbeat, bytes);
  try {
    print_record(ListKey{}, bytes);
  } catch (const Error&) {
    // Said what is wrong.
  }
  if (const auto key = parse_key(bytes); key && parse_key(to_text(*key)) != key) std::abort();
  return 0;
}
