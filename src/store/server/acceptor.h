// Where the server's clients come in. When there are no descriptors or no memory for another
// client, the acceptor rests for a moment and tries again: nobody would tell the acceptor that
// there are some.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "os/io/shortage.h"
#include "os/process/unshared_fd.h"

namespace tensorbus::store {

class Acceptor {
 public:
  Acceptor(const std::string& host, std::uint16_t port);

  int get() const noexcept { return listener_.get(); }
  std::uint16_t port() const noexcept { return port_; }

  // The next client, if one waits and the acceptor does not rest.
  os::Fd next();
  // There is a lack of something that a client needs, says this errno.
  void rest(int lack) { shortage_.begin(lack, now()); }
  // A client has all that it needs.
  void welcomed() { shortage_.end(); }
  bool rests() const noexcept { return rests_until() != TimePoint::max(); }
  TimePoint rests_until() const noexcept { return shortage_.until(); }
  // True once when the end of the rest has come.
  bool rest_is_over(TimePoint time) noexcept { return shortage_.pause_is_over(time); }

  void close() noexcept { listener_.reset(); }

 private:
  os::UnsharedFd listener_;
  std::uint16_t port_;
  os::Shortage shortage_{"store"};
};

}  // namespace tensorbus::store
