// GPUs: whether there is a driver, what devices it has, and whether they do what tensorbus asks.
#include <fmt/format.h>

#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "program/doctor.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

constexpr const char* device_section = "devices";
constexpr Duration time_for_checks = std::chrono::seconds(20);

void look_at_device(Findings& findings, const device::cuda::Functions& functions,
                    const device::Info& info, Deadline deadline) {
  const std::string name = to_string(info.id);
  findings.push_back({device_section, name, fmt::format("{}, {}", info.name, info.uuid)});
  if (!info.is_real) {
    findings.back().state = Finding::State::note;
    findings.back().advice = "this is the stand-in of tests: what follows says nothing of a GPU";
  }
  for (const auto& [check, status] : device::cuda::check_device(functions, info.id, deadline)) {
    const bool fine = status.ok();
    findings.push_back({device_section, fmt::format("{} {}", name, check),
                        fine ? "as it should be" : status.message,
                        fine ? Finding::State::fine : Finding::State::problem,
                        fine ? "" : "please report this, with the lines of --json"});
  }
}

}  // namespace

void look_at_devices(Findings& findings) {
  try {
    const device::cuda::Library& library = device::cuda::library();
    findings.push_back(
        {device_section, "driver",
         fmt::format("{}, CUDA {}", library.file, device::cuda::version_text(library.version))});
    device::cuda::initialise(library.functions);
    const Deadline deadline = Deadline::after(time_for_checks);
    for (const device::Info& info : device::cuda::list(library.functions)) {
      look_at_device(findings, library.functions, info, deadline);
    }
  } catch (const Error& error) {
    findings.push_back({device_section, "driver", error.what(), Finding::State::problem,
                        "tensors in the host's memory need none"});
  }
}

}  // namespace tensorbus::program
