// How a native client introduces itself on a fresh connection.
#pragma once

#include <optional>
#include <string>

#include "os/io/fd.h"
#include "os/io/poll.h"
#include "store/protocol/protocol.h"

namespace tensorbus::store {

// Says hello, proves the token and checks that the server knows the token, too. Returns the
// server's hello. Throws Error: unreachable if the server closes or stays silent, denied if the
// token is missing or wrong, or if the server does not ask for one, failed if the server speaks
// another protocol or version.
Hello shake_hands(const os::Fd& socket, const Id16& session,
                  const std::optional<std::string>& token, Deadline deadline,
                  const os::EventFd* abort);

}  // namespace tensorbus::store
