#include "bus/files/paths.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/config.h"
#include "os/io/fd.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

constexpr const char* variable = "TENSORBUS_STATE_DIR";

[[noreturn]] void refuse_folder(const std::string& folder, const std::string& why) {
  throw Error(Code::invalid_argument, fmt::format("{}={}: {}", variable, folder, why));
}

// The folder as it is at its own name: others could change where a symbolic link leads.
void check_private(const std::string& folder) {
  struct stat found {};
  if (::lstat(folder.c_str(), &found) != 0)
    refuse_folder(folder, os::errno_message("lstat", errno));
  if (S_ISLNK(found.st_mode))
    refuse_folder(folder, "it is a symbolic link; name the folder itself");
  if (!S_ISDIR(found.st_mode)) refuse_folder(folder, "it is not a folder");
  if (found.st_uid != ::geteuid()) {
    refuse_folder(folder, fmt::format("it belongs to user {}, not to us (user {})", found.st_uid,
                                      ::geteuid()));
  }
  if ((found.st_mode & 077) != 0) {
    refuse_folder(folder, fmt::format("others may enter it (mode {:04o}); chmod 700 it",
                                      found.st_mode & 07777));
  }
}

std::string path_of(Rank rank, const char* what) {
  return fmt::format("{}/agent_rank{}_{}.lmdb", agent_folder(), rank, what);
}

}  // namespace

std::string agent_folder() {
  const auto given = config::variable(variable);
  if (!given) return "/tmp";
  if (!given->starts_with("/")) refuse_folder(*given, "give a path that starts with a /");
  if (::mkdir(given->c_str(), 0700) != 0 && errno != EEXIST) {
    refuse_folder(*given, os::errno_message("it cannot be made", errno));
  }
  check_private(*given);
  return *given;
}

std::string default_queue_path(Rank rank) { return path_of(rank, "command"); }
std::string default_state_path(Rank rank) { return path_of(rank, "state"); }

}  // namespace tensorbus::bus
