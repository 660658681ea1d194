#include "os/net/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

struct Name {
  sockaddr_un address{};
  socklen_t size = 0;
};

Name abstract_name(const std::string& name) {
  Name made;
  made.address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof made.address.sun_path) {
    throw Error(Code::invalid_argument, "the name of a socket has 1 to 107 bytes");
  }
  std::memcpy(made.address.sun_path + 1, name.data(), name.size());
  made.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

// Paths of sockets end after 107 bytes; through the descriptor of its folder any file can be named.
class PathName {
 public:
  explicit PathName(const std::string& path) {
    std::string name = path;
    if (name.size() >= sizeof made_.address.sun_path) {
      const std::filesystem::path whole = std::filesystem::absolute(path);
      folder_ = Fd(::open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      if (!folder_) throw_errno(whole.parent_path().string());
      name = "/proc/self/fd/" + std::to_string(folder_.get()) + "/" + whole.filename().string();
    }
    if (name.empty() || name.size() >= sizeof made_.address.sun_path) {
      throw Error(Code::invalid_argument, "the name of the socket " + path + " is too long");
    }
    made_.address.sun_family = AF_UNIX;
    std::memcpy(made_.address.sun_path, name.c_str(), name.size() + 1);
    made_.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  }
  const sockaddr* address() const noexcept {
    return reinterpret_cast<const sockaddr*>(&made_.address);
  }
  socklen_t size() const noexcept { return made_.size; }

 private:
  Name made_;
  Fd folder_;
};

Fd new_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_errno("socket");
  return socket;
}

}  // namespace

Fd listen_unix(const std::string& name) {
  const Name bound = abstract_name(name);
  Fd socket = new_socket();
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&bound.address), bound.size) != 0 ||
      ::listen(socket.get(), 4096) != 0) {
    throw_errno("cannot listen on an abstract Unix socket");
  }
  return socket;
}

Fd accept_unix(const Fd& listener, Shortage& shortage, TimePoint now) {
  Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) {
    shortage.end();
  } else if (is_shortage(errno)) {
    shortage.begin(errno, now);
  } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
    throw_errno("accept");
  }
  return socket;
}

Fd connect_unix(const std::string& name) {
  const Name remote = abstract_name(name);
  Fd socket = new_socket();
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&remote.address), remote.size) !=
      0) {
    if (errno == EAGAIN) return Fd();
    const bool nobody_listens = errno == ECONNREFUSED;
    std::string message = errno_message("cannot connect to its Unix socket", errno);
    if (nobody_listens) message += "; the process has died or closed it";
    throw Error(Code::unreachable, message);
  }
  return socket;
}

Fd listen_unix_path(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode) || found.st_uid != ::geteuid()) {
      throw Error(Code::failed, path + " is in the way: no socket of ours; move it away");
    }
    if (::unlink(path.c_str()) != 0) throw_errno("cannot remove the old socket " + path);
  }
  const PathName name(path);
  Fd socket = new_socket();
  // The file gets the socket's mode, so there is no moment at which others may connect.
  if (::fchmod(socket.get(), 0600) != 0) throw_errno("fchmod of a socket");
  if (::bind(socket.get(), name.address(), name.size()) != 0 || ::listen(socket.get(), 4096) != 0) {
    throw_errno("cannot listen on " + path);
  }
  return socket;
}

Fd connect_unix_path(const std::string& path) {
  const PathName name(path);
  Fd socket = new_socket();
  if (::connect(socket.get(), name.address(), name.size()) != 0) {
    throw Error(Code::unreachable, errno_message("cannot connect to " + path, errno));
  }
  return socket;
}

Credentials peer_credentials(const Fd& socket) {
  ucred found{};
  socklen_t size = sizeof found;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &found, &size) != 0) {
    throw_errno("SO_PEERCRED");
  }
  return {found.pid, found.uid};
}

uid_t overflow_uid() {
  std::ifstream file("/proc/sys/kernel/overflowuid");
  uid_t uid = 65534;
  file >> uid;
  return uid;
}

PacketResult send_packet(const Fd& socket, std::string_view bytes, const std::vector<int>& fds) {
  if (bytes.size() > most_packet_bytes || fds.size() > most_passed_fds) {
    throw Error(Code::invalid_argument, "a packet is too large");
  }
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(most_passed_fds * sizeof(int))] = {};
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  while (true) {
    if (::sendmsg(socket.get(), &header, MSG_NOSIGNAL) >= 0) return PacketResult::done;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS) return PacketResult::would_block;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return PacketResult::closed;
    throw_errno("sendmsg");
  }
}

PacketResult receive_packet(const Fd& socket, Packet& packet) {
  packet.fds.clear();
  // Not the string itself: most packets are short, and growing it would write zeros each time.
  char buffer[most_packet_bytes + 1];
  iovec part{buffer, sizeof buffer};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(most_passed_fds * sizeof(int))];
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return PacketResult::would_block;
  if (got < 0 && errno == ECONNRESET) return PacketResult::closed;
  if (got < 0) throw_errno("recvmsg");
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(each) + i * sizeof(int), sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    throw Error(Code::failed,
                "a packet was cut: too many bytes, or no descriptors left (ulimit -n)");
  }
  // Our packets are never empty: on a sequenced socket nothing means the end.
  if (got == 0) return PacketResult::closed;
  packet.bytes.assign(buffer, static_cast<std::size_t>(got));
  return PacketResult::done;
}

}  // namespace tensorbus::os
