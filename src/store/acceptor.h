// Where the server's clients come in. When there are no descriptors or no memory for another one it
// rests for a moment and tries again: nobody would tell it that there are some.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/seldom.h"
#include "os/unshared_fd.h"

namespace tensorbus::store {

class Acceptor {
 public:
  Acceptor(const std::string& host, std::uint16_t port);

  int get() const noexcept { return listener_.get(); }
  std::uint16_t port() const noexcept { return port_; }

  // The next client, if one waits and it does not rest.
  os::Fd next();
  // There is a lack of something that a client needs, says this errno.
  void rest(int lack);
  std::optional<TimePoint> rests_until() const noexcept { return rests_until_; }
  void end_rest() noexcept { rests_until_.reset(); }

  void close() noexcept { listener_.reset(); }

 private:
  os::UnsharedFd listener_;
  std::uint16_t port_;
  std::optional<TimePoint> rests_until_;
  Seldom lack_is_told_;
  bool told_ = false;  // of the lack that lasts
};

}  // namespace tensorbus::store
