#include "os/process/cores.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "os/io/fd.h"

namespace tensorbus::os {

std::size_t Cores::count() const noexcept {
  std::size_t bits = 0;
  for (const std::uint64_t word : words) bits += static_cast<std::size_t>(std::popcount(word));
  return bits;
}

bool Cores::overlaps(const Cores& other) const noexcept {
  const std::size_t common = std::min(words.size(), other.words.size());
  for (std::size_t i = 0; i < common; ++i) {
    if ((words[i] & other.words[i]) != 0) return true;
  }
  return false;
}

Cores own_cores() {
  constexpr std::size_t most_words = 1024;  // the kernel refuses a mask shorter than its own
  Cores cores;
  for (std::size_t words = sizeof(cpu_set_t) / 8; words <= most_words; words *= 2) {
    cores.words.assign(words, 0);
    auto* const mask = reinterpret_cast<cpu_set_t*>(cores.words.data());
    if (::sched_getaffinity(0, words * 8, mask) == 0) break;
    if (errno != EINVAL) throw_errno("sched_getaffinity");
  }
  while (!cores.words.empty() && cores.words.back() == 0) cores.words.pop_back();
  return cores;
}

}  // namespace tensorbus::os
