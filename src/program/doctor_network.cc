// UCX, and who can be reached through which fabric.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "fabric/core/descriptor.h"
#include "fabric/core/identity.h"
#include "fabric/route/select.h"
#include "fabric/ucx/ucx.h"
#include "os/net/tcp.h"
#include "os/process/process.h"
#include "program/doctor.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

using State = Finding::State;
using fabric::Address;

// Starts the network fabric and looks where it listens.
Finding try_to_listen(const std::string& bind, const fabric::PortRange& ports) {
  Finding finding{"network", "listens", ""};
  try {
    fabric::UcxOptions options;
    options.identity = {os::host_key(), ::getpid(), os::own_start_time(), random_id(), "doctor"};
    options.bind = bind;
    options.ports = ports;
    options.hosts.emplace();
    const std::vector<std::string> before = os::listening_addresses();
    const auto fabric = fabric::make_ucx_fabric(options);
    std::vector<std::string> after = os::listening_addresses();
    std::erase_if(after, [&](const std::string& address) {
      return std::ranges::find(before, address) != before.end();
    });
    finding.value = fmt::format("{}", fmt::join(after, ", "));
    const std::string wanted = os::host_port(bind, 0);
    const std::string_view host = std::string_view(wanted).substr(0, wanted.size() - 1);
    const bool as_told = std::ranges::all_of(
        after, [&](const std::string& address) { return address.starts_with(host); });
    if (!as_told || after.empty()) {
      finding.state = State::problem;
      finding.value = after.empty() ? "nowhere" : finding.value;
      finding.advice = fmt::format("it was told to listen on {} only", bind);
    }
  } catch (...) {
    finding.value = current_exception_status().message;
    finding.state = State::problem;
    finding.advice = "peers on other hosts cannot reach this process";
  }
  return finding;
}

// Of a descriptor, or one address.
std::vector<Address> addresses_in(const std::string& bytes) {
  try {
    return addresses(fabric::decode_descriptor(bytes));
  } catch (const Error& no_descriptor) {
    try {
      return {fabric::decode_address(bytes)};
    } catch (const Error& no_address) {
      throw Error(Code::invalid_argument,
                  fmt::format("--peer: {}; {}", no_descriptor.what(), no_address.what()));
    }
  }
}

}  // namespace

void look_at_network(Findings& findings, const std::string& bind, const fabric::PortRange& ports) {
  const fabric::UcxReport report = fabric::ucx_report();
  if (report.version.empty()) {
    findings.push_back({"network", "UCX", "none", State::note, fabric::describe_ucx()});
    return;
  }
  // The assertion is gone in 1.14 (openucx/ucx#8175).
  const bool asserts = report.version.starts_with("1.13.");
  findings.push_back({"network", "UCX", fmt::format("{} ({})", report.version, report.library),
                      asserts ? State::note : State::fine,
                      asserts ? "a peer that dies in the middle of a call can end this process "
                                "with an assertion of UCX 1.13; 1.14 and later go on (pip: "
                                "libucx-cu12, with TENSORBUS_UCX naming it)"
                              : ""});
  findings.push_back({"network", "transports it has",
                      fmt::format("{} (tensorbus uses tcp)", fmt::join(report.transports, " "))});
  if (std::ranges::find(report.transports, "tcp") == report.transports.end()) {
    findings.push_back({"network", "tcp", "missing", State::problem,
                        "install a UCX that was built with it (Debian: libucx0)"});
  }
  if (bind.empty()) {
    findings.push_back({"network", "listens", "nowhere", State::note,
                        "to be reached from other hosts give --bind, or set TENSORBUS_BIND, to an "
                        "address that \"ip address\" shows"});
    return;
  }
  findings.push_back(try_to_listen(bind, ports));
  const fabric::PortRange allowed = effective(ports);
  findings.push_back({"network", "ports", to_string(allowed),
                      allowed.any() ? State::note : State::fine,
                      allowed.any() ? "to open a firewall give --ports, or set TENSORBUS_PORTS, "
                                      "with one port for each process"
                                    : ""});
  findings.push_back({"network", "admits", "hosts of ranks in the directory", State::note,
                      "crafted bytes on UCX's port can crash a process: trust those hosts. An "
                      "endpoint admits everybody; keep strangers out of its port"});
}

void look_at_peer(Findings& findings, const std::string& peer, const std::string& bind) {
  const std::vector<Address> addresses = addresses_in(peer);
  const fabric::Identity& who = addresses.front().identity;
  findings.push_back({"peer", "process", fmt::format("{}, host {}", to_string(who), who.host)});
  bool served = false;
  for (const fabric::RouteVerdict& verdict : select(fabric::own_reach(bind), addresses)) {
    Status refusal = verdict.refusal;
    if (refusal.ok() && verdict.kind == "shm") refusal = fabric::probe_shm(verdict.address);
    Finding finding{"peer", verdict.kind, ""};
    if (!refusal.ok()) {
      finding.value = "refused: " + refusal.message;
      finding.state = State::note;
    } else if (!served) {
      finding.value = "would serve it";
      served = true;
    } else {
      finding.value = "could serve it too";
    }
    findings.push_back(std::move(finding));
  }
  if (served) return;
  findings.push_back({"peer", "reachable", "no", State::problem,
                      "no fabric serves it: see the reasons above. On one host it must run as the "
                      "same user in the same network namespace; on another both must be bound to "
                      "addresses (TENSORBUS_BIND)"});
}

}  // namespace tensorbus::program
