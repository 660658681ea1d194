// The fabric for peers on other hosts: UCX, active messages only. UCX is loaded when one of these
// functions is first called; where there is none, and in a build without UCX, they say so.
//
// Crafted bytes on UCX's own port can crash a process, before any code of ours sees them: who may
// connect at all should be known (`hosts`, admit()), and is to be trusted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "device/core/copier.h"
#include "device/cuda/device.h"
#include "fabric/core/fabric.h"
#include "fabric/core/port_range.h"
#include "os/net/ip_address.h"

namespace tensorbus::fabric {

struct UcxOptions {
  Identity identity;               // how peers know us
  std::string secret;              // what callers must know
  std::string bind = "127.0.0.1";  // an address of this machine, not a name
  PortRange ports;                 // that UCX may listen on; any: as TENSORBUS_PORTS says
  // Addresses that may connect; more by admit(). Nothing: everybody may.
  std::optional<std::vector<os::IpAddress>> hosts{};
  std::uint64_t window = 4u << 20;  // bytes that a source may send ahead, per read
  const Clock* clock = &steady_clock();
  // The devices of this process, each asked for when the first tensor on it comes.
  device::Copiers::Open open_device = &device::cuda::open;
};

// Error: invalid_argument for settings, unsupported without UCX, failed with UCX's text.
std::unique_ptr<Fabric> make_ucx_fabric(const UcxOptions& options);

// For people: "UCX 1.13.1", or why there is none.
bool has_ucx() noexcept;
std::string describe_ucx();

// Which UCX this process has loaded; all empty if there is none.
struct UcxReport {
  std::string version;
  std::string library;                  // its file
  std::vector<std::string> transports;  // that it was built with and whose modules it found
};
UcxReport ucx_report();

}  // namespace tensorbus::fabric
