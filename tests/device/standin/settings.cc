#include "settings.h"

#include <cstdlib>
#include <sstream>

namespace tensorbus::device::cuda {
namespace {

void read(const char* name, long& value) {
  if (const char* text = std::getenv(name)) value = std::atol(text);
}

void read(const char* name, bool& value) {
  if (const char* text = std::getenv(name)) value = std::atol(text) != 0;
}

void read(const char* name, std::string& value) {
  if (const char* text = std::getenv(name)) value = text;
}

}  // namespace

Settings settings_from_environment() {
  Settings settings;
  read("STANDIN_LAZY", settings.lazy);
  read("STANDIN_DELAY_US", settings.delay_us);
  read("STANDIN_SEED", settings.seed);
  read("STANDIN_DEVICES", settings.devices);
  read("STANDIN_VERSION", settings.version);
  read("STANDIN_MEMORY_MB", settings.memory_mb);
  read("STANDIN_PEERS", settings.peers);
  read("STANDIN_IPC_SELF", settings.ipc_self);
  read("STANDIN_FAIL", settings.fail);
  return settings;
}

Result injected(const Settings& settings, const std::string& name, int call) {
  std::istringstream list(settings.fail);
  const std::string wanted = name + ":" + std::to_string(call);
  for (std::string item; std::getline(list, item, ',');) {
    if (item == wanted) return not_supported;
    if (item.starts_with(wanted + ":")) return std::atoi(item.c_str() + wanted.size() + 1);
  }
  return success;
}

}  // namespace tensorbus::device::cuda
