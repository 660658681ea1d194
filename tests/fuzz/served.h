// One connection to a service in this process, fed with bytes as a socket would.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "store/server/service.h"

namespace tensorbus::store {

// Feeds the bytes in pieces whose sizes the first byte decides, until the service has had enough.
inline void feed(Service& service, std::string_view greeting, std::string_view bytes) {
  Connection connection;
  std::size_t piece = 1U << 20;
  if (!bytes.empty()) {
    piece = 1U + static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
  }
  connection.in = greeting;
  service.serve(connection);
  while (!bytes.empty() && !connection.closing) {
    connection.in += bytes.substr(0, piece);
    bytes.remove_prefix(std::min(piece, bytes.size()));
    service.serve(connection);
    while (Connection* resumed = service.take_resumed()) service.serve(*resumed);
    service.tick(now(), now());
    service.take_dirty();
    connection.out.clear();
    connection.out_at = 0;
  }
  service.forget(connection);
}

}  // namespace tensorbus::store
