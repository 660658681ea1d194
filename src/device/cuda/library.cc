#include "device/cuda/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "tensorbus/status.h"

namespace tensorbus::device::cuda {
namespace {

constexpr int oldest = 12000;
using GetFunction = Result (*)(const char*, void**, int, std::uint64_t, int*);

[[noreturn]] void refuse(const std::string& why) {
  throw Error(Code::unsupported, "no CUDA device can be used: " + why);
}

// An unknown name gives success and a null pointer: the pointer is what counts.
std::vector<std::string> bind_functions(GetFunction get, Functions& functions) {
  std::vector<std::string> missing;
  const auto find = [&]<typename Function>(Function& function, const char* name) {
    void* found = nullptr;
    int status = 0;
    get(name, &found, oldest, 0, &status);
    function = reinterpret_cast<Function>(found);
    if (found == nullptr) missing.emplace_back(name);
  };
#define TENSORBUS_FIND(name, parameters) find(functions.name, #name);
  TENSORBUS_CUDA_FUNCTIONS(TENSORBUS_FIND)
#undef TENSORBUS_FIND
  return missing;
}

// What a driver of any version has, so that an old one can be named.
int version_of(void* handle) {
  int version = 0;
  const auto ask = reinterpret_cast<Result (*)(int*)>(::dlsym(handle, "cuDriverGetVersion"));
  if (ask == nullptr || ask(&version) != success) return 0;
  return version;
}

std::string file_of(const void* function) {
  Dl_info found{};
  return ::dladdr(function, &found) == 0 ? std::string() : std::string(found.dli_fname);
}

std::string hint_for(Result result) {
  switch (result) {
    case no_device:
      return "; in a container, start it with its GPUs (docker run --gpus all), and look whether "
             "CUDA_VISIBLE_DEVICES hides them";
    case not_initialized:
      return "; nothing of CUDA can be used in a child that was forked after CUDA was used: start "
             "processes with \"spawn\"";
    case system_driver_mismatch:
    case unknown:
      return "; the driver's library and its kernel module may be of different versions: restart "
             "the machine, or see what nvidia-smi says";
    default:
      return "";
  }
}

}  // namespace

Library load(const std::string& file) {
  // Never unloaded: the driver has threads of its own.
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) refuse(fmt::format("{} cannot be loaded: {}", soname, ::dlerror()));
  Library loaded;
  loaded.version = version_of(handle);
  if (loaded.version == 0) refuse(file + " is no CUDA driver, or does not say its version");
  const auto get = reinterpret_cast<GetFunction>(::dlsym(handle, "cuGetProcAddress_v2"));
  if (loaded.version < oldest || get == nullptr) {
    refuse(fmt::format("the driver serves CUDA {}, and tensorbus needs {} or later",
                       version_text(loaded.version), version_text(oldest)));
  }
  const auto missing = bind_functions(get, loaded.functions);
  if (!missing.empty()) refuse(fmt::format("{} has no {}", file, fmt::join(missing, ", ")));
  loaded.file = file_of(reinterpret_cast<const void*>(loaded.functions.cuInit));
  return loaded;
}

const Library& library() {
  static const Library loaded = load(soname);
  return loaded;
}

void initialise(const Functions& functions) {
  const Result result = functions.cuInit(0);
  if (result != success) {
    refuse(fmt::format("cuInit gives {}{}", describe(functions, result), hint_for(result)));
  }
}

std::string describe(const Functions& functions, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  functions.cuGetErrorName(result, &name);
  functions.cuGetErrorString(result, &text);
  if (name == nullptr) return fmt::format("error {} of CUDA", result);
  return fmt::format("{} ({}: {})", name, result, text == nullptr ? "" : text);
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace tensorbus::device::cuda
