// A journal with any bytes in it, and one with whole records that say anything: an error or a
// state, nothing else. Random bytes alone would never pass the checksums.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "served.h"

namespace tensorbus::store {
namespace {

const std::string& journal_path() {
  static const std::string path = std::filesystem::temp_directory_path() /
                                  ("tensorbus-fuzz-journal-" + std::to_string(::getpid()));
  [[maybe_unused]] static const int removed =
      std::atexit([] { std::filesystem::remove(journal_path()); });
  return path;
}

void write_raw(std::string_view bytes) {
  std::ofstream(journal_path(), std::ios::binary) << "tensorbus store journal 1\n" << bytes;
}

// Each record: operation, size of the body, body.
void write_records(std::string_view bytes) {
  std::filesystem::remove(journal_path());
  Journal journal(journal_path(), [](const JournalRecord&) {});
  while (bytes.size() >= 2) {
    const auto op = static_cast<Op>(bytes[0]);
    const auto size = static_cast<unsigned char>(bytes[1]);
    bytes.remove_prefix(2);
    const std::string_view body = bytes.substr(0, size);
    journal.append({op, size % 2 == 0 ? "session" : "", size, 0, body});
    bytes.remove_prefix(body.size());
  }
  journal.flush();
}

}  // namespace
}  // namespace tensorbus::store

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus::store;
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.empty()) return 0;
  const bool raw = bytes.front() % 2 == 0;
  bytes.remove_prefix(1);
  raw ? write_raw(bytes) : write_records(bytes);
  try {
    tensorbus::StoreServerOptions options;
    options.journal = journal_path();
    Service service(options);
  } catch (const tensorbus::Error&) {
    // Refused, in words.
  }
  return 0;
}
