#include "os/process/watched.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace tensorbus::os {
namespace {

// Sets that watch each other in a ring do not exist; the kernel nests at most five.
constexpr int most_nested = 5;

// No stdio and no allocation: a thread that held the locks of either may not exist in the child.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  ~LineReader() { ::close(fd_); }

  // The next line, cut at the size of the buffer; null at the end.
  const char* next() {
    std::size_t length = 0;
    while (true) {
      if (at_ == end_) {
        const ssize_t got = ::read(fd_, block_, sizeof block_);
        if (got <= 0) return nullptr;
        at_ = 0;
        end_ = static_cast<std::size_t>(got);
      }
      const char character = block_[at_++];
      if (character == '\n') break;
      if (length + 1 < sizeof line_) line_[length++] = character;
    }
    line_[length] = '\0';
    return line_;
  }

 private:
  int fd_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  char block_[512];
  char line_[64];
};

int open_fdinfo(int fd) {
  char path[32] = "/proc/self/fdinfo/";
  char digits[12];
  std::size_t count = 0;
  for (int rest = fd; rest > 0 || count == 0; rest /= 10) {
    digits[count++] = static_cast<char>('0' + rest % 10);
  }
  std::size_t at = std::strlen(path);
  while (count > 0) path[at++] = digits[--count];
  path[at] = '\0';
  return ::open(path, O_RDONLY | O_CLOEXEC);
}

// The number after "tfd:", or -1.
int watched_descriptor(const char* line) {
  if (std::strncmp(line, "tfd:", 4) != 0) return -1;
  line += 4;
  while (*line == ' ') ++line;
  if (*line < '0' || *line > '9') return -1;
  int fd = 0;
  while (*line >= '0' && *line <= '9' && fd < 100'000'000) fd = fd * 10 + (*line++ - '0');
  return fd;
}

int socket_option(int fd, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

bool is_tcp(int fd) {
  const int domain = socket_option(fd, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) && socket_option(fd, SO_TYPE) == SOCK_STREAM;
}

void visit(int epoll_fd, void (*act)(int fd), int depth) noexcept {
  if (depth == most_nested) return;
  const int info = open_fdinfo(epoll_fd);
  if (info < 0) return;
  LineReader lines(info);
  while (const char* line = lines.next()) {
    const int fd = watched_descriptor(line);
    if (fd < 0) continue;
    // What is neither a socket nor a set has no such lines.
    if (is_tcp(fd)) {
      act(fd);
    } else {
      visit(fd, act, depth + 1);
    }
  }
}

}  // namespace

void for_watched_sockets(int epoll_fd, void (*act)(int fd)) noexcept { visit(epoll_fd, act, 0); }

}  // namespace tensorbus::os
