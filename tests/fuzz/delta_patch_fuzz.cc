// A patch that says anything, behind a header that fits.
#include <cstdlib>

#include "delta/testing/patch_liar.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus::delta;
  static LiedToReader reader;
  std::vector<std::byte> patch(size);
  if (size > 0) std::memcpy(patch.data(), data, size);
  // Every second one as it came: the header is read, too.
  if (size % 2 == 0) LiedToReader::forge_header(patch);
  if (reader.read(patch) == LiedToReader::Outcome::damaged) std::abort();
  return 0;
}
