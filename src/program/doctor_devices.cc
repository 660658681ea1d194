// CUDA devices: whether the driver can be used, and what it does with a few copies.
#include <fmt/format.h>

#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/library.h"
#include "program/doctor.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

using State = Finding::State;
namespace cuda = device::cuda;

constexpr auto patience = std::chrono::seconds(20);

void add_library(Findings& findings, const cuda::Library& library) {
  findings.push_back({"devices", "driver", library.file});
  findings.push_back({"devices", "CUDA", cuda::version_text(library.version)});
}

void add_device(Findings& findings, const device::Info& info) {
  Finding found{"devices", to_string(info.id), fmt::format("{}, {}", info.name, info.uuid)};
  if (!info.is_real) {
    found.state = State::note;
    found.advice = "a stand-in for tests: it says nothing about a GPU";
  }
  findings.push_back(std::move(found));
}

void add_checks(Findings& findings, const cuda::Functions& functions, device::Id id) {
  for (const auto& check : cuda::check_device(functions, id, Deadline::after(patience))) {
    Finding found{"devices", fmt::format("{} {}", to_string(id), check.name), "right"};
    if (!check.status.ok()) {
      found.value = check.status.message;
      found.state = State::problem;
      found.advice = "please send in what \"tensorbus doctor --gpu --json\" prints";
    }
    findings.push_back(std::move(found));
  }
}

void add_peers(Findings& findings, const cuda::Functions& functions,
               const std::vector<device::Info>& devices) {
  for (const device::Info& from : devices) {
    for (const device::Info& to : devices) {
      if (from.id == to.id) continue;
      int reaches = 0;
      functions.cuDeviceCanAccessPeer(&reaches, from.id.ordinal, to.id.ordinal);
      findings.push_back({"devices", fmt::format("{} to {}", to_string(from.id), to_string(to.id)),
                          reaches != 0 ? "direct" : "through the host"});
    }
  }
}

void look(Findings& findings) {
  const cuda::Library& library = cuda::library();
  add_library(findings, library);
  cuda::initialise(library.functions);
  const std::vector<device::Info> devices = cuda::list(library.functions);
  for (const device::Info& info : devices) {
    add_device(findings, info);
    add_checks(findings, library.functions, info.id);
  }
  add_peers(findings, library.functions, devices);
}

}  // namespace

void look_at_devices(Findings& findings, bool asked_for) {
  if (!asked_for) {
    findings.push_back({"devices", "CUDA", "not looked at; --gpu does"});
    return;
  }
  try {
    look(findings);
  } catch (const Error& error) {
    findings.push_back({"devices", "CUDA", error.what(), State::problem,
                        "host tensors need none of it; tensors on devices are refused so far"});
  }
}

}  // namespace tensorbus::program
