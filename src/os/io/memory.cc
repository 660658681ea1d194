#include "os/io/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <optional>

#include "os/io/control_groups.h"
#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::optional<std::size_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  if (!(file >> value)) return std::nullopt;  // not there, or "max"
  return value;
}

std::size_t available_in_machine() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::size_t kib = 0;
  std::string unit;
  while (file >> name >> kib && std::getline(file, unit)) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return SIZE_MAX;
}

// One of the lines "name number" of a file.
std::size_t named_number_in(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string name;
  std::size_t value = 0;
  while (file >> name >> value) {
    if (name == wanted) return value;
  }
  return 0;
}

// The files of one version of control groups.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* reclaimable;  // in memory.stat: files that were read, which make room for others
};
constexpr GroupFiles version_1{"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr GroupFiles version_2{"/memory.max", "/memory.current", "inactive_file"};

std::size_t available_in(const std::string& folder, const GroupFiles& files) {
  const auto limit = number_in(folder + files.limit);
  const auto used = number_in(folder + files.used);
  if (!limit || !used) return SIZE_MAX;
  const std::size_t spare = named_number_in(folder + "/memory.stat", files.reclaimable);
  const std::size_t taken = *used - std::min(*used, spare);
  return *limit - std::min(*limit, taken);
}

std::byte* map_or_throw(const Fd& file, std::size_t offset, std::size_t size, int protection,
                        int flags) {
  void* data = ::mmap(nullptr, size, protection, flags, file.get(), static_cast<::off_t>(offset));
  if (data == MAP_FAILED) {
    const int failure = errno;
    std::string message = errno_message("cannot map " + std::to_string(size) + " bytes", failure);
    if (failure == ENOMEM) message += "; see vm.max_map_count and ulimit -v";
    throw Error(Code::failed, message);
  }
  return static_cast<std::byte*>(data);
}

[[noreturn]] void no_room(std::size_t size, const std::string& why) {
  throw Error(Code::failed, "there is no room for " + std::to_string(size) +
                                " bytes of shared memory: " + why +
                                "; free some, or raise the memory limit of this container");
}

}  // namespace

std::size_t available_in_groups(std::istream& membership, const std::string& root) {
  std::size_t available = SIZE_MAX;
  for_each_group(membership, root, "memory", [&](const std::string& folder, GroupVersion version) {
    const GroupFiles& files = version == GroupVersion::two ? version_2 : version_1;
    available = std::min(available, available_in(folder, files));
  });
  return available;
}

std::size_t available_memory() {
  std::ifstream membership("/proc/self/cgroup");
  return std::min(available_in_machine(), available_in_groups(membership, "/sys/fs/cgroup"));
}

void Mapping::reset() noexcept {
  if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), size_);
}

Mapping map(const Fd& file, std::size_t size, bool writable, bool populate) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  return {map_or_throw(file, 0, size, protection, MAP_SHARED | (populate ? MAP_POPULATE : 0)),
          size};
}

void populate(const Mapping& mapping, std::size_t begin, std::size_t end) noexcept {
#ifdef MADV_POPULATE_READ
  const std::size_t first = begin / page_size() * page_size();
  ::madvise(mapping.data() + first, end - first, MADV_POPULATE_READ);
#else
  static_cast<void>(mapping), static_cast<void>(begin), static_cast<void>(end);
#endif
}

Mapping map_privately(const Fd& file, std::size_t offset, std::size_t size) {
  // Not reserved: hardly ever is a page written, and then the kernel finds one.
  return {map_or_throw(file, offset, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE),
          size};
}

Fd sealed_memfd(const std::string& name, std::size_t size) {
  // Memory files have no limit of their own: fallocate would take all there is and more.
  if (const std::size_t available = available_memory(); size > available) {
    no_room(size, std::to_string(available) + " are available");
  }
  // Beyond this limit fallocate does not fail, it raises a signal.
  rlimit files{};
  if (::getrlimit(RLIMIT_FSIZE, &files) == 0 && size > files.rlim_cur) {
    no_room(size, "files may have " + std::to_string(files.rlim_cur) + " bytes (ulimit -f)");
  }
  Fd file(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw_errno("memfd_create");
  // fallocate grows the file itself; a signal may end it half way.
  int failed = -1;
  do {
    failed = ::fallocate(file.get(), 0, 0, static_cast<off_t>(size));
  } while (failed != 0 && errno == EINTR);
  if (failed != 0) no_room(size, errno_message("fallocate", errno));
  if (::fcntl(file.get(), F_ADD_SEALS, seals) != 0) throw_errno("F_ADD_SEALS");
  return file;
}

Fd reopen_read_only(const Fd& file) {
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  Fd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) throw_errno("cannot re-open " + path);
  return opened;
}

std::size_t checked_memfd_size(const Fd& file) {
  const int found = ::fcntl(file.get(), F_GET_SEALS);
  if (found < 0 || (found & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
    throw Error(Code::denied, "shared memory without seals was refused: its owner could cut it");
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno("fstat");
  return static_cast<std::size_t>(status.st_size);
}

std::size_t page_size() noexcept {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace tensorbus::os
