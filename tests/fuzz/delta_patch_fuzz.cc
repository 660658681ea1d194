// A patch that says anything: bytes as they come, or a true patch of which some were changed and
// whose header fits again. Nobody would guess the rest of one.
#include <cstdlib>

#include "delta/testing/patch_liar.h"

namespace {

using tensorbus::delta::LiedToReader;
using Bytes = std::vector<std::byte>;

// Two bytes say where, the third what.
Bytes changed(Bytes patch, std::span<const unsigned char> changes) {
  for (; changes.size() >= 3; changes = changes.subspan(3)) {
    const std::size_t at = changes[0] + std::size_t{256} * changes[1];
    patch[at % patch.size()] = static_cast<std::byte>(changes[2]);
  }
  LiedToReader::forge_header(patch);
  return patch;
}

Bytes as_it_came(std::span<const unsigned char> data) {
  Bytes patch(data.size());
  if (!data.empty()) std::memcpy(patch.data(), data.data(), data.size());
  return patch;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static LiedToReader reader;
  static const Bytes honest = reader.honest_patch();
  const std::span bytes(data, size);
  const Bytes patch = size % 4 == 3 ? as_it_came(bytes) : changed(honest, bytes);
  if (reader.read(patch) == LiedToReader::Outcome::damaged) std::abort();
  return 0;
}
