// The fabric for peers on other hosts: UCX, active messages only. In a build without UCX the same
// functions exist and say so.
//
// For trusted networks: crafted bytes on UCX's own port can crash a process, before any code of
// ours sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"

namespace tensorbus::fabric {

// Both 0: the system chooses.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

struct UcxOptions {
  Identity identity;                // how peers know us
  std::string secret;               // what callers must know
  std::string bind = "127.0.0.1";   // an address of this machine, not a name
  PortRange ports;                  // that UCX may listen on
  std::uint64_t window = 4u << 20;  // bytes that a source may send ahead, per read
  const Clock* clock = &steady_clock();
};

// Error: invalid_argument for settings, unsupported in a build without UCX, failed with UCX's text.
std::unique_ptr<Fabric> make_ucx_fabric(const UcxOptions& options);

// For people: "UCX 1.13.1", or why there is none.
bool has_ucx() noexcept;
std::string describe_ucx();

// Which UCX this process has loaded; all empty in a build without.
struct UcxReport {
  std::string version;
  std::string library;                  // its file
  std::vector<std::string> transports;  // that it was built with and whose modules it found
};
UcxReport ucx_report();

}  // namespace tensorbus::fabric
