// Unix sockets, abstract (no file to leave behind) or at a path (only who may write there can
// connect): messages keep their bounds and carry descriptors.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "os/io/fd.h"
#include "os/io/shortage.h"

namespace tensorbus::os {

// The kernel's limit is 253.
inline constexpr std::size_t most_passed_fds = 64;
inline constexpr std::size_t most_packet_bytes = 64 * 1024;

// Listens on an abstract name (SOCK_SEQPACKET, non-blocking).
Fd listen_unix(const std::string& name);
// Nothing if nobody waits, or nothing can be accepted for a while: then `shortage` says until when.
// Throws for what is wrong with the listener.
Fd accept_unix(const Fd& listener, Shortage& shortage, TimePoint now);
// Does not wait: nothing if the listener's backlog is full, Error(unreachable) if nobody listens.
Fd connect_unix(const std::string& name);

// Listens at a path of any length. The file has mode 0600; a socket of this user that is there
// already is replaced, anything else is an error.
Fd listen_unix_path(const std::string& path);
Fd connect_unix_path(const std::string& path);

// Who was at the other end when it connected or listened, in the reader's namespaces: a process of
// another pid namespace has pid 0, of another user namespace the overflow uid.
struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Credentials peer_credentials(const Fd& socket);
uid_t overflow_uid();

struct Packet {
  std::string bytes;
  std::vector<Fd> fds;
};

enum class PacketResult { done, would_block, closed };

// One message with its descriptors, whole or not at all.
PacketResult send_packet(const Fd& socket, std::string_view bytes,
                         const std::vector<int>& fds = {});
// Descriptors come close-on-exec. Truncated packets are Error(failed).
PacketResult receive_packet(const Fd& socket, Packet& packet);

}  // namespace tensorbus::os
