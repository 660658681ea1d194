#include "store/connection.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace tensorbus::store {
namespace {

constexpr std::size_t read_size = 64 * 1024;
constexpr std::size_t read_per_turn = 512 * 1024;
// A client that lets this much pile up does not read.
constexpr std::size_t max_output = 2 * max_frame_size;

}  // namespace

bool Connection::receive() {
  for (std::size_t taken = 0; taken < read_per_turn;) {
    // Not straight into the string: growing it would clear as much as could come, every time.
    std::array<char, read_size> buffer;
    const ssize_t got = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    in.append(buffer.data(), static_cast<std::size_t>(got));
    taken += static_cast<std::size_t>(got);
    if (static_cast<std::size_t>(got) < read_size) break;
  }
  return true;
}

bool Connection::flush() {
  while (has_output()) {
    const ssize_t sent =
        ::send(socket.get(), out.data() + out_at, out.size() - out_at, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
      return out.size() - out_at <= max_output;
    }
    out_at += static_cast<std::size_t>(sent);
  }
  // A buffer that once held a large value is given back.
  if (out.capacity() > read_size) {
    std::string().swap(out);
  } else {
    out.clear();
  }
  out_at = 0;
  return true;
}

void Connection::consume(std::size_t size) {
  in_at += size;
  if (in_at == in.size()) {
    if (in.capacity() > 4 * read_size) {
      std::string().swap(in);
    } else {
      in.clear();
    }
    in_at = 0;
  } else if (in_at > read_size) {
    in.erase(0, in_at);
    in_at = 0;
  }
}

void Connection::reply(std::uint64_t id, Code code, std::string_view body) {
  out += encode_frame(id, static_cast<std::uint8_t>(code), body);
}

}  // namespace tensorbus::store
