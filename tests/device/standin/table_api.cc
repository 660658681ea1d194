// Functions by name, as the 535 driver answers: success, a null pointer and a status for what it
// does not have or did not have in the version that is asked for.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "driver.h"

namespace tensorbus::device::cuda {
namespace {

constexpr int found_it = 0;
constexpr int not_there = 1;
constexpr int too_new = 2;

// What a caller of an older version does not get.
int first_version_of(const std::string& name) {
  if (name == "cuGetProcAddress") return 12000;
  if (name == "cuThreadExchangeStreamCaptureMode" || name == "cuStreamIsCapturing") return 10010;
  return 2000;
}

void* own_handle() {
  Dl_info self{};
  ::dladdr(reinterpret_cast<const void*>(&own_handle), &self);
  return ::dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

// The newest signature, as cuGetProcAddress gives it.
void* find(const std::string& name) {
  static void* const self = own_handle();
  if (!name.starts_with("cu")) return nullptr;
  if (void* second = ::dlsym(self, (name + "_v2").c_str())) return second;
  return ::dlsym(self, name.c_str());
}

}  // namespace

STANDIN_API cuGetProcAddress_v2(const char* name, void** result, int version, std::uint64_t,
                                int* status) {
  void* function = find(name);
  const bool old_enough = first_version_of(name) <= version;
  *result = old_enough ? function : nullptr;
  if (status != nullptr) {
    *status = function == nullptr ? not_there : old_enough ? found_it : too_new;
  }
  return success;
}

STANDIN_API cuGetProcAddress(const char* name, void** result, int version, std::uint64_t flags) {
  int status = found_it;
  cuGetProcAddress_v2(name, result, version, flags, &status);
  return status == found_it ? success : not_found;
}

}  // namespace tensorbus::device::cuda
