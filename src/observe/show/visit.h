// One connection of a page: bounded in time and in bytes, whatever its client does.
#pragma once

#include <httplib.h>

#include <array>
#include <cstddef>
#include <string>

#include "tensorbus/deadline.h"

namespace tensorbus::observe {

// The library bounds single reads and writes only, so a client that sends a byte now and then would
// keep its thread. A request has so much time to come, and its answer, once it is there, as much to
// be taken. Both descriptors stay their owners'.
class Visit final : public httplib::Stream {
 public:
  // Over, too, when `stopping` becomes readable.
  Visit(int socket, int stopping, Duration patience)
      : socket_(socket),
        stopping_(stopping),
        patience_(patience),
        deadline_(Deadline::after(patience)) {}

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* to, std::size_t size) override;
  // All of it, or -1.
  ssize_t write(const char* from, std::size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  bool wait(short event) const;
  // False: there is nothing more.
  bool fill();

  const int socket_;
  const int stopping_;
  const Duration patience_;
  Deadline deadline_;
  bool answers_ = false;
  std::size_t received_ = 0;
  std::array<char, 4096> buffer_{};
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace tensorbus::observe
