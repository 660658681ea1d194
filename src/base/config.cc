#include "base/config.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

#include "base/log.h"
#include "tensorbus/status.h"

extern char** environ;

namespace tensorbus::config {
namespace {

constexpr std::array all_settings = {
    Setting{"TENSORBUS_BIND", "",
            "address of this machine where peers on other hosts reach it; empty: no network"},
    Setting{"TENSORBUS_COPY_THREADS", "",
            "threads that copy for a rank, 1 to 8; empty: cores by agents of this host"},
    Setting{"TENSORBUS_CUDA_SHIM", "",
            "1: python -m tensorbus.fserver runs scripts for CUDA on the CPU"},
    Setting{"TENSORBUS_INIT_TIMEOUT", "300",
            "seconds that the nodes of a push-pull job wait for each other"},
    Setting{"TENSORBUS_LOG", "info", "log level: trace, debug, info, warn, error"},
    Setting{"TENSORBUS_METRICS", "",
            "HOST:PORT where a process shows its metrics; port 0: a free one; empty: nowhere"},
    Setting{"TENSORBUS_NAMESPACE", "default", "keeps the jobs on one store apart"},
    Setting{"TENSORBUS_PORTS", "",
            "ports A-B where peers on other hosts reach this machine; empty: any"},
    Setting{"TENSORBUS_SPIN_US", "",
            "microseconds that a blocked push-pull call spins before it sleeps"},
    Setting{"TENSORBUS_STATE_DIR", "/tmp",
            "folder of agents' files unless they are named; only its owner may enter it"},
    Setting{"TENSORBUS_STATUS_PERIOD", "2",
            "least seconds between two reports of an agent for tensorbus status; 0: none"},
    Setting{"TENSORBUS_STORE", "",
            "store URL for the command line without --store, and for embedded()"},
    Setting{"TENSORBUS_TOKEN", "", "shared secret that store clients prove and servers ask for",
            true},
    Setting{"TENSORBUS_TRACE", "", "folder that gets a timeline of each process; empty: none"},
    Setting{"TENSORBUS_UCX", "",
            "UCX for other hosts: its folder or its libucp; empty: UCX_ROOT, or what is found"},
};

}  // namespace

std::span<const Setting> settings() noexcept { return all_settings; }

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> unknown;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    const std::string_view name = line.substr(0, line.find('='));
    if (!name.starts_with("TENSORBUS_")) continue;
    const bool known = std::any_of(all_settings.begin(), all_settings.end(),
                                   [&](const Setting& setting) { return setting.name == name; });
    if (!known) unknown.emplace_back(name);
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

void start() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (const auto level = variable("TENSORBUS_LOG")) {
      try {
        log::set_level(log::parse_level(*level));
      } catch (const Error& error) {
        log::warn("TENSORBUS_LOG is ignored: {}", error.what());
      }
    }
    for (const std::string& name : unknown_variables()) {
      log::warn(
          "environment variable {} is set but means nothing to tensorbus; see the settings in "
          "docs/index.md",
          name);
    }
  });
}

}  // namespace tensorbus::config
