// The machine, its limits, and what processes may do to each other.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <optional>

#include "os/io/memory.h"
#include "os/process/cores.h"
#include "os/process/process.h"
#include "program/doctor.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

using State = Finding::State;

constexpr rlim_t few_descriptors = 4096;
constexpr std::size_t few_maps = 65'530;  // the kernel's default
constexpr std::size_t little_memory = std::size_t{1} << 30;

std::string gibibytes(std::size_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(1 << 30));
}

std::optional<std::size_t> number_in(const char* path) {
  std::ifstream file(path);
  std::size_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

std::string shown(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : fmt::format("{}", value);
}

rlimit limit_of(int resource) {
  rlimit limit{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  return limit;
}

void look_at_sizes(Findings& findings, const char* name, int resource, const char* command) {
  const rlim_t soft = limit_of(resource).rlim_cur;
  Finding finding{"limits", name, shown(soft)};
  if (soft != RLIM_INFINITY) {
    finding.state = State::note;
    finding.advice =
        fmt::format("tensors beyond it are refused; \"{} unlimited\" lifts it", command);
  }
  findings.push_back(std::move(finding));
}

// Reads 16 bytes of a child, as a reader does with its peer.
int reading_a_child_fails_with() {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  if (child < 0) return errno;
  static const char known[16] = "0123456789abcde";
  char found[16] = {};
  const iovec local{found, sizeof found};
  const iovec remote{const_cast<char*>(known), sizeof known};
  const int failure = os::read_process_memory(child, {&local, 1}, {&remote, 1});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return failure;
}

}  // namespace

void look_at_machine(Findings& findings) {
  utsname system{};
  ::uname(&system);
  findings.push_back({"machine", "system", fmt::format("{} {}", system.sysname, system.release)});
  findings.push_back({"machine", "cores", std::to_string(os::usable_cores())});
  const std::size_t available = os::available_memory();
  Finding memory{"machine", "memory available", gibibytes(available)};
  if (available < little_memory) {
    memory.state = State::problem;
    memory.advice = "free some, or raise the memory limit of this container";
  }
  findings.push_back(std::move(memory));
  findings.push_back({"machine", "host key", os::host_key()});
}

void look_at_limits(Findings& findings) {
  const rlimit descriptors = limit_of(RLIMIT_NOFILE);
  Finding files{
      "limits", "descriptors",
      fmt::format("{} (at most {})", shown(descriptors.rlim_cur), shown(descriptors.rlim_max))};
  if (descriptors.rlim_cur < few_descriptors) {
    files.state = State::note;
    files.advice = fmt::format(
        "a peer takes 4, a shared segment 1; for hundreds of peers raise it: \"ulimit -n {}\"",
        shown(descriptors.rlim_max));
  }
  findings.push_back(std::move(files));
  const std::size_t maps = number_in("/proc/sys/vm/max_map_count").value_or(few_maps);
  Finding mappings{"limits", "mappings", fmt::format("{} (vm.max_map_count)", maps)};
  if (maps < few_maps) {
    mappings.state = State::note;
    mappings.advice =
        "every shared segment is one; raise it with \"sysctl vm.max_map_count=262144\"";
  }
  findings.push_back(std::move(mappings));
  look_at_sizes(findings, "address space", RLIMIT_AS, "ulimit -v");
  look_at_sizes(findings, "size of files", RLIMIT_FSIZE, "ulimit -f");
}

void look_at_shared_memory(Findings& findings) {
  Finding sealed{"same host", "shared memory", "sealed memory files work"};
  try {
    os::checked_memfd_size(os::sealed_memfd("tensorbus doctor", os::page_size()));
  } catch (...) {
    sealed.value = current_exception_status().message;
    sealed.state = State::problem;
    sealed.advice = "without them processes of this host cannot read each other's tensors";
  }
  findings.push_back(std::move(sealed));

  Finding reading{"same host", "private memory", "read with process_vm_readv"};
  if (const int failure = reading_a_child_fails_with(); failure != 0) {
    reading.value =
        fmt::format("packed by its owner: process_vm_readv gives \"{}\"", std::strerror(failure));
    reading.state = State::note;
    reading.advice =
        "works, but slower; keep tensors in tensorbus.empty() memory, or allow it (SYS_PTRACE)";
  } else if (const auto scope = number_in("/proc/sys/kernel/yama/ptrace_scope");
             scope.value_or(0) > 0) {
    reading.value = fmt::format("kernel.yama.ptrace_scope is {}: only of own children", *scope);
    reading.state = State::note;
    reading.advice =
        "others pack it, which is slower; keep tensors in tensorbus.empty() memory, or set it to 0";
  }
  findings.push_back(std::move(reading));
}

}  // namespace tensorbus::program
