#include "os/process/cores.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <fstream>

#include "os/io/control_groups.h"
#include "os/io/fd.h"

namespace tensorbus::os {
namespace {

// Microseconds of processor time in each period; a quota that is not there, or not limited, is 0.
struct Quota {
  std::int64_t time = 0;
  std::int64_t period = 0;
};

Quota quota_in(const std::string& folder, GroupVersion version) {
  Quota quota;
  if (version == GroupVersion::two) {
    std::ifstream(folder + "/cpu.max") >> quota.time >> quota.period;
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota.time;
    std::ifstream(folder + "/cpu.cfs_period_us") >> quota.period;
  }
  return quota;
}

}  // namespace

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

std::size_t cores_in_groups(std::istream& membership, const std::string& root) {
  std::size_t cores = SIZE_MAX;
  for_each_group(membership, root, "cpu", [&](const std::string& folder, GroupVersion version) {
    const Quota quota = quota_in(folder, version);
    if (quota.time <= 0 || quota.period <= 0) return;
    cores = std::min(cores, static_cast<std::size_t>((quota.time - 1) / quota.period + 1));
  });
  return cores;
}

std::size_t usable_cores() {
  std::ifstream membership("/proc/self/cgroup");
  const std::size_t allowed = cores_in_groups(membership, "/sys/fs/cgroup");
  return std::max<std::size_t>(1, std::min(allowed, own_cores().count()));
}

}  // namespace tensorbus::os
