// Decisions taken from bytes: a random number generator's in tests, a fuzzer's in fuzz targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace tensorbus::fabric {

class Dice {
 public:
  explicit Dice(std::string_view bytes) : rest_(bytes) {}

  bool used_up() const noexcept { return rest_.empty(); }
  // Zeros when there is nothing left.
  std::uint8_t byte() noexcept {
    if (rest_.empty()) return 0;
    const char first = rest_.front();
    rest_.remove_prefix(1);
    return static_cast<std::uint8_t>(first);
  }
  std::size_t below(std::size_t bound) noexcept { return byte() % bound; }
  // Mostly small, sometimes anything.
  std::uint64_t number() noexcept {
    const std::uint8_t first = byte();
    if (first < 240) return first % 16;
    std::uint64_t value = first % 2 == 0 ? 0 : ~std::uint64_t{0};
    for (int i = 0; i < first % 8; ++i) value = value << 8 | byte();
    return value;
  }
  std::string text(std::size_t longest) {
    const std::string_view taken = rest_.substr(0, below(longest + 1));
    rest_.remove_prefix(taken.size());
    return std::string(taken);
  }
  // The same with a few bytes changed, or cut.
  std::string damaged(std::string bytes) {
    for (std::size_t n = below(4); n > 0 && !bytes.empty(); --n) {
      bytes[number() % bytes.size()] = static_cast<char>(byte());
    }
    if (below(8) == 0) bytes.resize(number() % (bytes.size() + 2));
    return bytes;
  }

 private:
  std::string_view rest_;
};

inline std::string random_bytes(std::mt19937_64& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace tensorbus::fabric
