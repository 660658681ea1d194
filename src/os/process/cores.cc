#include "os/process/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <thread>

#include "os/io/control_groups.h"

namespace tensorbus::os {
namespace {

// Microseconds of processor time in each period; one that is not there, or not limited, is 0.
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

std::size_t cores_by_affinity() {
  cpu_set_t cores;
  // Fails on machines with more cores than the set has room for.
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return std::thread::hardware_concurrency();
  return static_cast<std::size_t>(CPU_COUNT(&cores));
}

}  // namespace

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
  return std::max<std::size_t>(1, std::min(allowed, cores_by_affinity()));
}

}  // namespace tensorbus::os
