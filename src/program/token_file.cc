// Files that hold a token: read only if nobody else can.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "os/io/fd.h"
#include "program/commands.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

constexpr std::size_t longest_line = 4096;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(Code::invalid_argument, fmt::format("token file {} {}", path, why));
}

void check_that_it_is_ours_alone(const os::Fd& file, const std::string& path) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) refuse(path, os::errno_message("cannot be read", errno));
  if (!S_ISREG(info.st_mode)) refuse(path, "is not a regular file");
  constexpr mode_t others = S_IRWXG | S_IRWXO;
  if ((info.st_mode & others) == 0) return;
  refuse(path, fmt::format("is open to other users (mode {:04o}), who would know the token; run "
                           "chmod 600 on it",
                           info.st_mode & 07777));
}

std::string first_line(const os::Fd& file, const std::string& path) {
  std::array<char, longest_line> buffer;
  const ssize_t size = ::read(file.get(), buffer.data(), buffer.size());
  if (size < 0) refuse(path, os::errno_message("cannot be read", errno));
  const std::string_view text(buffer.data(), static_cast<std::size_t>(size));
  const std::string_view line = text.substr(0, text.find('\n'));
  if (line.empty()) refuse(path, "has nothing in its first line");
  if (line.size() == longest_line) refuse(path, "has a first line that is too long for a token");
  return std::string(line);
}

}  // namespace

std::optional<std::string> read_token(const std::string& path) {
  if (path.empty()) return std::nullopt;
  // Without O_NONBLOCK a pipe would keep us waiting for its writer.
  const os::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) refuse(path, os::errno_message("cannot be opened", errno));
  check_that_it_is_ours_alone(file, path);
  return first_line(file, path);
}

}  // namespace tensorbus::program
