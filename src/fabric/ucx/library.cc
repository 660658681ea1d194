#include "fabric/ucx/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include <array>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <filesystem>

#include "base/config.h"
#include "base/log.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric::ucx {
namespace {

constexpr const char* soname = "libucp.so.0";
constexpr std::array<unsigned, 2> oldest{1, 13};

// UCX prints by itself; a library must not.
ucs_log_func_rc_t write_to_our_log(const char*, unsigned, const char*, ucs_log_level_t level,
                                   const ucs_log_component_config_t*, const char* format,
                                   va_list arguments) {
  std::array<char, 512> text;
  std::vsnprintf(text.data(), text.size(), format, arguments);
  // An error of UCX is an error of one peer: the fabric reports the error where it knows the peer.
  log::at(level <= UCS_LOG_LEVEL_WARN ? log::Level::warn : log::Level::debug, "UCX: {}",
          text.data());
  return UCS_LOG_FUNC_RC_STOP;
}

// What UCX_HANDLE_ERRORS=none does. UCX reads that variable while it is loaded and then installs
// handlers, which are taken out again: a crash belongs to the program.
void tame(const Library& ucx) {
  for (const int signal : {SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGHUP}) {
    ucx.ucs_debug_disable_signal(signal);
  }
  ucx.ucs_log_push_handler(write_to_our_log);
}

std::string file_of(const void* function) {
  Dl_info found{};
  return ::dladdr(function, &found) == 0 ? std::string() : std::string(found.dli_fname);
}

// Why the library does not fit; empty if it does.
std::string bind_functions(void* handle, Library& ucx) {
  std::vector<std::string> missing;
  const auto find = [&]<typename Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    if (function == nullptr) missing.emplace_back(name);
  };
#define TENSORBUS_FIND(name) find(ucx.name, #name);
  TENSORBUS_UCX_FUNCTIONS(TENSORBUS_FIND)
#undef TENSORBUS_FIND
  if (!missing.empty()) return fmt::format("it has no {}", fmt::join(missing, ", "));
  std::array<unsigned, 3> version{};
  ucx.ucp_get_version(&version[0], &version[1], &version[2]);
  if (std::array{version[0], version[1]} < oldest) {
    return fmt::format("it is {}, and tensorbus needs {}.{} or later", ucx.ucp_get_version_string(),
                       oldest[0], oldest[1]);
  }
  ucx.file = file_of(reinterpret_cast<const void*>(ucx.ucp_get_version));
  return {};
}

void add_matches(const std::filesystem::path& pattern, std::vector<std::string>& files) {
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    files.insert(files.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
}

// Of a prefix: where `make install`, Red Hat and Debian put libraries, and the folder itself. The
// loader refuses libraries for other processors, which Debian may hold beside ours.
std::vector<std::string> in_prefix(const std::string& named) {
  if (!std::filesystem::is_directory(named)) return {named};
  const std::filesystem::path prefix = named;
  std::vector<std::string> files;
  for (const char* place : {"lib", "lib64", "lib/*-linux-gnu", ""}) {
    add_matches(prefix / place / soname, files);
  }
  if (files.empty()) files.push_back(prefix / "lib" / soname);  // so that the error names a file
  return files;
}

// Of the extension, or of the program, which the loader knows by the name that it was called by.
std::filesystem::path own_file() {
  const std::filesystem::path own = file_of(reinterpret_cast<const void*>(&own_file));
  std::error_code ignored;
  return own.has_parent_path() ? own : std::filesystem::read_symlink("/proc/self/exe", ignored);
}

// Packages of Python that bring UCX along, where they are installed beside ours: our extension lies
// in site-packages/tensorbus, our program in the environment's bin.
void add_python_packages(const std::filesystem::path& own, std::vector<std::string>& files) {
  const std::filesystem::path above = own.parent_path().parent_path();
  for (const auto& site : {above, above / "lib" / "python3*" / "site-packages"}) {
    add_matches(site / "libucx" / "lib" / soname, files);
    add_matches(site / "nixl*.libs" / "libucp*.so*", files);
  }
}

}  // namespace

std::vector<std::string> candidates(const std::filesystem::path& own) {
  for (const char* name : {"TENSORBUS_UCX", "UCX_ROOT"}) {
    if (const auto named = config::variable(name)) return in_prefix(*named);
  }
  std::vector<std::string> files{soname};
  add_python_packages(own, files);
  return files;
}

Library load(std::span<const std::string> files) {
  std::vector<std::string> refusals;
  for (const std::string& file : files) {
    // Never unloaded: UCX has a thread of its own.
    void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    Library ucx;
    const std::string refusal = handle == nullptr ? ::dlerror() : bind_functions(handle, ucx);
    if (refusal.empty()) {
      tame(ucx);
      return ucx;
    }
    refusals.push_back(fmt::format("{}: {}", file, refusal));
    if (handle != nullptr) ::dlclose(handle);
  }
  throw Error(Code::unsupported,
              fmt::format("there is no UCX on this machine that tensorbus can use, so it cannot "
                          "reach other hosts ({}); install one (Debian and Ubuntu: libucx0; pip: "
                          "libucx-cu12), or set TENSORBUS_UCX to its folder",
                          fmt::join(refusals, "; ")));
}

const Library& library() {
  static const Library loaded = load(candidates(own_file()));
  return loaded;
}

}  // namespace tensorbus::fabric::ucx
